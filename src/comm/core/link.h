// What an engine provides: messages between any two workers of a world, and word of their failure.
// Everything else in comm/ is built on this and knows no engine.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/deadline.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "comm/core/board.h"
#include "comm/core/device.h"
#include "comm/core/failure.h"
#include "comm/core/shared_memory.h"

namespace lockstep::comm {

// Keeps the messages of one operation apart from all others. The top bit belongs to the engine.
using Slot = std::uint64_t;

inline constexpr int kNoRank = -1;

// One message that was posted.
//
// Ownership: borrows its memory until it is destroyed. The destructor returns when the engine does
//            not use the memory any more.
class Transfer {
 public:
  virtual ~Transfer() = default;

  // True if the message has been sent or received, false at the deadline. Throws if it never will
  // be.
  virtual bool wait(Deadline deadline) = 0;

  // Makes a wait, now or later, return false at once. Any thread. A receive that was cancelled may
  // have taken its message with it.
  virtual void cancel() = 0;
};

// The connections of one worker to all others of its generation.
//
// Threads:   any thread, several at once.
// Blocking:  send and recv only post. Transfer::wait waits, with a deadline.
// Failure:   a wait, and any later call, throws what ended the link or the peer that it waits for.
// Ownership: memory is borrowed until the Transfer is destroyed. The destructor leaves the world.
class Link {
 public:
  virtual ~Link() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string engine() const = 0;

  // Whether peers may be on other hosts, where a cut network can be why one is silent.
  virtual bool over_network() const { return false; }

  // If there are several hosts, and the workers of each share memory: the number of each worker's
  // host. Hosts are numbered by their first workers. Else empty.
  virtual std::span<const int> hosts() const { return {}; }

  // Messages of one slot between two workers arrive in the order in which they were posted. A recv
  // may have more room than the message has bytes, never less: the header has said the size before.
  virtual std::unique_ptr<Transfer> send(int peer, Slot slot, const void* data,
                                         std::size_t bytes) = 0;
  virtual std::unique_ptr<Transfer> recv(int peer, Slot slot, void* data, std::size_t bytes) = 0;

  // Ends the link here. The first reason is kept, every wait ends with it, and the peers are told.
  // Never throws.
  virtual void fail(const Failure& failure) noexcept = 0;
  virtual std::optional<Failure> failure() const = 0;

  // tell: tells the peers why this worker is about to end, once, without ending yet. heard_from:
  // what a peer has told; waits for it until the deadline. With these two, late workers find the
  // end of the trail.
  virtual void tell(const Failure& failure) noexcept = 0;
  virtual std::optional<Failure> heard_from(int peer, Deadline deadline) noexcept = 0;

  // Which peer this worker waits for now, or kNoRank. A peer that gives up waiting for this worker
  // is told.
  virtual void waits_for(int /*peer*/) noexcept {}

  // Only if messages of up to kCardBytes travel although no thread waits for them: how long a call
  // may look for messages that are about to come, because that takes no longer than to wake a
  // thread. Short collectives then begin in their calls (core/message_board.h).
  virtual std::optional<std::chrono::microseconds> patience_in_call() const { return std::nullopt; }

  // A hint: so many messages more that were sent to this peer are known to have been received,
  // because of what the peer has sent since.
  virtual void received_by(int /*peer*/, std::uint64_t /*messages*/) noexcept {}

  // Why a peer has ended, if that is known here.
  virtual std::optional<Failure> end_of(int /*peer*/) const { return std::nullopt; }

  // If the workers of a host can read each other's memory: what they share, else null. And a board
  // for some workers; null if they are not all on this host. `group` is the same number on every
  // member, and no other board of the same members has it at this time.
  virtual Host* host() { return nullptr; }
  virtual std::unique_ptr<Board> make_board(std::uint64_t /*group*/,
                                            std::span<const int> /*members*/) {
    return nullptr;
  }

  // Collectives of some workers on memory of devices; null if the engine has no devices. An
  // operation on the device takes at most `timeout`, counted from the end of the operation before
  // it.
  virtual std::unique_ptr<DeviceGroup> make_device_group(std::span<const int> /*members*/,
                                                         std::chrono::milliseconds /*timeout*/) {
    return nullptr;
  }
};

}  // namespace lockstep::comm

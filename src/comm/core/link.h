// What an engine gives: messages between any two workers of a world, and the news of their failure.
// Everything else of comm/ is built on this and knows no engine.
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

// An order of messages between two workers. The top bit is the engine's.
using Slot = std::uint64_t;

inline constexpr int kNoRank = -1;

// One message under way.
//
// Ownership: borrows its memory until it is destroyed; the destructor returns only when the engine
//            has let go of it.
class Transfer {
 public:
  virtual ~Transfer() = default;

  // True when the message has been sent or received, false at the deadline. Throws when it never
  // will be.
  virtual bool wait(Deadline deadline) = 0;

  // Makes a wait, now or later, return false at once. Any thread.
  virtual void cancel() = 0;
};

// Threads:   any thread, any number.
// Blocking:  send and recv only post; Transfer::wait waits, with a deadline.
// Failure:   a wait, and any later call, throws what ended the link or the peer it waits for.
// Ownership: memory is borrowed until the Transfer is destroyed. The destructor leaves the world.
class Link {
 public:
  virtual ~Link() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string engine() const = 0;

  // Peers may be on other hosts: a silent one may be behind a cut network.
  virtual bool over_network() const { return false; }

  // Messages of one slot between two workers arrive in the order posted. A recv may be posted with
  // more room than the message has bytes, never with less: a header says how much before.
  virtual std::unique_ptr<Transfer> send(int peer, Slot slot, const void* data,
                                         std::size_t bytes) = 0;
  virtual std::unique_ptr<Transfer> recv(int peer, Slot slot, void* data, std::size_t bytes) = 0;

  // Ends the link here: the first reason is kept, every wait ends with it, the peers are told.
  // Never throws.
  virtual void fail(const Failure& failure) noexcept = 0;
  virtual std::optional<Failure> failure() const = 0;

  // Tells the peers why this worker is about to end, once, without ending yet; and what a peer has
  // told, waiting for it until the deadline. Late workers find out with these who the first late
  // one was.
  virtual void tell(const Failure& failure) noexcept = 0;
  virtual std::optional<Failure> heard_from(int peer, Deadline deadline) noexcept = 0;

  // Whom this worker waits for now, or kNoRank. Told to those who give up waiting for this worker.
  virtual void waits_for(int /*peer*/) noexcept {}

  // Why a peer has ended, as far as is known here.
  virtual std::optional<Failure> end_of(int /*peer*/) const { return std::nullopt; }

  // Where all workers are processes of one host that can read each other's memory: what they have
  // there, and a board for some of them. `group` is the same number on every member and on no
  // other board of the same members at this time.
  virtual Host* host() { return nullptr; }
  virtual std::unique_ptr<Board> make_board(std::uint64_t /*group*/,
                                            std::span<const int> /*members*/) {
    return nullptr;
  }

  // Collectives of some of the workers on memory of devices, where the engine has them. An operation
  // on the device takes at most `timeout` from the end of the one before it.
  virtual std::unique_ptr<DeviceGroup> make_device_group(std::span<const int> /*members*/,
                                                         std::chrono::milliseconds /*timeout*/) {
    return nullptr;
  }

  // The engine's own all-reduce over the whole link, in place, where it has one. `tag` tells operations apart that
  // run at the same time.
  virtual bool has_native_all_reduce() const { return false; }
  virtual void native_all_reduce(const Buffer& /*data*/, ReduceOp /*op*/, std::uint32_t /*tag*/,
                                 Deadline /*deadline*/) {}
};

}  // namespace lockstep::comm

// The inside of a Comm: one order of collectives among the workers of a group, and their messages.
// Channels and splits are made from it.
#pragma once

#include <lockstep/comm.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "comm/messages.h"
#include "comm/operation.h"

namespace lockstep::comm {

// What an operation is called in messages: the collective, and how it runs.
struct What {
  const char* collective;
  std::string how;
};

// What a worker shows on its card in the call, if the engine has a board.
struct Opening {
  enum class Card : std::uint8_t {
    kNone,    // nothing
    kData,    // everything that the others need from this worker
    kPlaces,  // where its buffers are: the others need its work, too
  };
  Card card = Card::kNone;
  std::span<const Buffer> buffers{};

  std::size_t bytes() const {  // on the card
    if (card != Card::kData) return buffers.size() * sizeof(ArenaAddress);
    return buffers.empty() ? 0 : buffers[0].bytes();
  }
};

// A part of an engine that is made when it is first needed. Not every engine has it, so null is an
// answer, too; the engine is asked once.
template <typename Part>
class OnDemand {
 public:
  template <typename Make>
  Part* get(Make&& make) {
    if (!std::exchange(asked_, true)) part_ = make();
    return part_.get();
  }
  Part* made() const { return part_.get(); }  // null also if nobody has asked yet
  bool missing() const { return asked_ && !part_; }

 private:
  std::unique_ptr<Part> part_;
  bool asked_ = false;
};

// Numbers the collectives of a Comm, fills their headers, and queues them.
//
// Threads:   one caller at a time, as the Comm above it; the threads of its queues stay inside.
//            Channels and splits of one link may be used from different threads.
// Blocking:  collective, channel and split return at once. The destructor waits for operations that
//            have not ended. It ends the link first, so that they end soon.
// Failure:   BadInput is thrown by the call and does no harm. require_alive throws what ended the
//            link, which is the same for all its channels.
// Ownership: shares the link with its channels and splits. The buffers of a collective are borrowed
//            until its Work completes.
class Channel {
 public:
  explicit Channel(Group group);
  ~Channel();

  static std::shared_ptr<Channel> of_world(std::shared_ptr<Link> link, const CommOptions& options);

  const Group& group() const { return group_; }
  const std::string& engine() const { return engine_; }
  Messages& messages() { return messages_; }
  CallText& call() { return call_; }  // the call that later collectives belong to

  // Runs a collective in the channel's order. Fills in the header's sequence and call. From the
  // sequence number on, the peers wait for this operation, so a failure ends the link (or_end).
  template <typename Body>
  Work collective(Header header, const What& what, Body body, Opening opening = {}) {
    require_alive();
    header.sequence = sequence_++;
    header.call = call_;
    return or_end(*group_.link, [&]() -> Work {
      const auto begun = begin(header, opening);
      if (!begun) return queue(header, what, std::move(body), {});
      const Left left = run_at_once(*begun, opening, [&body](Exchange& here) { body(here); });
      if (left == Left::kNothing) return {};
      if (left == Left::kLastRound) return queue(header, what, [](Exchange&) {}, {begun, false});
      return queue(header, what, std::move(body), {begun, opening.card == Opening::Card::kPlaces});
    });
  }

  // The same for memory of a device, in the same order.
  Work device_collective(Header header, What what, DeviceTask task);

  // The data in memory that all members of a host have mapped: where they are, or a copy in
  // staging memory. If that is taken, or if the workers share no memory: the data.
  Buffer staged(const Buffer& data) const;
  // For a copy in staging memory: copies the result back.
  void unstage(const Buffer& copy, const Buffer& data) const;

  // BadInput if a buffer is not in memory that all neighbours have mapped: two levels need that.
  void require_on_host(std::span<const Buffer> buffers) const;

  // Null if the engine has no devices.
  DeviceGroup* device();

  std::shared_ptr<Channel> channel(std::uint32_t id);
  std::shared_ptr<Channel> split(std::vector<int> ranks);

  // A number for the next arena that is shared here. It is the same on every worker, and never 0,
  // because 0 means "not shared" in an ArenaAddress.
  std::uint64_t next_arena();

  // BadInput, or what ended the link.
  void require_alive() const;
  void require_usable(const Buffer& data);
  void require_rank(int rank, const char* role) const;

 private:
  std::shared_ptr<Exchange> exchange(const Header& header);
  Board* board_for(const Header& header, Slot greetings);
  std::unique_ptr<Board> make_board(std::uint64_t id, std::span<const int> members) const;
  std::shared_ptr<Exchange> begin(const Header& header, Opening opening);
  // What is left of an operation that has begun.
  enum class Left : std::uint8_t { kBody, kLastRound, kNothing };
  Left run_at_once(Exchange& begun, Opening opening, const std::function<void(Exchange&)>& body);
  struct OwnBoards {
    OnDemand<Board> all;
    OnDemand<Board> by_messages;  // if `all` is missing, and the link has patience for it
    OnDemand<Board> on_host;      // of the members on this worker's host, for two levels
  };
  struct Begun {
    std::shared_ptr<Exchange> exchange;  // null: it begins on the thread that runs it
    bool needed = true;                  // peers wait for what is left
  };
  Work queue(const Header& header, const What& what, std::function<void(Exchange&)> body,
             const Begun& begun);

  Group group_;
  std::string engine_;
  CallText call_;
  std::uint64_t sequence_ = 0;
  std::uint64_t arenas_ = 0;
  std::set<std::uint32_t> channels_;
  std::map<std::vector<int>, std::uint64_t> splits_;  // how many splits each list had
  Scratch scratch_;
  OwnBoards boards_;
  OnDemand<DeviceGroup> device_;  // for buffers on a device
  Executor collectives_;
  Messages messages_;
};

}  // namespace lockstep::comm

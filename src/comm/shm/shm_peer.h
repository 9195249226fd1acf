// What a worker has in flight with one other: messages that are posted, announced, granted or half
// sent.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "comm/core/link.h"
#include "comm/shm/ring.h"

namespace lockstep::comm {

// A longer message asks first. A short one is sent at once; a receiver that does not expect it yet
// keeps it.
inline constexpr std::size_t kShortMessageBytes = 16384;
// One in so many messages to a peer asks even if it is short, and its sender waits. So what a
// worker sends ahead stays bounded.
inline constexpr std::uint64_t kShortInARow = 32;

enum class PostState { kPosted, kDone, kFailed };

struct Post {
  int peer = 0;
  Slot slot = 0;
  std::byte* data = nullptr;  // for a send, only read
  std::size_t bytes = 0;      // to send; for a receive, the room
  std::size_t moved = 0;
  std::size_t total = 0;  // for a receive: bytes of the message
  std::uint64_t number = 0;
  bool sends = false;
  bool asks = false;  // a send that wants a grant first
  bool cancelled = false;
  PostState state = PostState::kPosted;
  std::optional<Failure> failure;
};
using PostPtr = std::shared_ptr<Post>;

// A message that has arrived, or was announced, before there was a receive for it.
struct ShmArrival {
  std::uint64_t number = 0;
  std::size_t total = 0;
  bool announced = false;  // only its kAsk has come
  std::vector<std::byte> bytes;
};

// Sends to one other worker, in the order in which a send passes through.
struct ShmSends {
  std::uint64_t next_number = 1;
  std::deque<PostPtr> to_begin;            // no frame has been written yet, in order
  std::map<std::uint64_t, PostPtr> asked;  // wait for their grant
  std::deque<PostPtr> streaming;           // granted

  bool asks_first(std::size_t bytes) const {
    return bytes > kShortMessageBytes || next_number % kShortInARow == 0;
  }
};

// Receives from one other worker.
struct ShmReceives {
  std::map<Slot, std::deque<PostPtr>> wanted;      // receives without a message yet
  std::map<Slot, std::deque<ShmArrival>> arrived;  // messages without a receive yet
  std::deque<Frame> grants;                        // written before anything else
  std::map<std::uint64_t, PostPtr> granted;        // by number
};

// Everything that this worker has with one other.
struct ShmPeer {
  ShmPeer(const Segment& theirs, const Segment& mine, int my_rank, int its_rank)
      : rank(its_rank), segment(&theirs), out(theirs, my_rank), in(mine, its_rank) {}

  int rank;
  const Segment* segment;
  RingWriter out;
  RingReader in;
  ShmSends sends;
  ShmReceives receives;
  std::optional<Failure> failure;
};

}  // namespace lockstep::comm

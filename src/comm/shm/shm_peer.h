// What a worker has under way with one other: messages posted, announced, granted and half sent.
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

// Longer messages ask first. Short ones may wait at a receiver that does not expect them yet.
inline constexpr std::size_t kShortMessageBytes = 16384;
// Every so many short messages to a peer one asks all the same, and its sender waits: what a peer sends ahead
// stays bounded.
inline constexpr std::uint64_t kShortInARow = 32;

enum class PostState { kPosted, kDone, kFailed };

struct Post {
  int peer = 0;
  Slot slot = 0;
  std::byte* data = nullptr;  // a sender's is only read
  std::size_t bytes = 0;      // to send; the room to receive
  std::size_t moved = 0;
  std::size_t total = 0;  // of the message that is received
  std::uint64_t number = 0;
  bool sends = false;
  bool asks = false;  // a send that wants a grant first
  bool cancelled = false;
  PostState state = PostState::kPosted;
  std::optional<Failure> failure;
};
using PostPtr = std::shared_ptr<Post>;

// A message that has come, or has been announced, before anybody wanted it.
struct ShmArrival {
  std::uint64_t number = 0;
  std::size_t total = 0;
  bool announced = false;  // long: only the question has come
  std::vector<std::byte> bytes;
};

// What goes to one other worker, in the order of its life.
struct ShmSends {
  std::uint64_t next_number = 1;
  std::deque<PostPtr> to_begin;            // the first frame has not been written, in order
  std::map<std::uint64_t, PostPtr> asked;  // long ones that wait for their grant
  std::deque<PostPtr> streaming;           // granted

  bool asks_first(std::size_t bytes) const {
    return bytes > kShortMessageBytes || next_number % kShortInARow == 0;
  }
};

// What comes from it.
struct ShmReceives {
  std::map<Slot, std::deque<PostPtr>> wanted;      // without a message yet
  std::map<Slot, std::deque<ShmArrival>> arrived;  // messages without a receive yet
  std::deque<Frame> grants;                        // to be sent before anything else
  std::map<std::uint64_t, PostPtr> granted;        // by number
};

// What this worker has to do with one other.
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

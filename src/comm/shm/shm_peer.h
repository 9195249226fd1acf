// Everything that a worker has with one other of its host.
#pragma once

#include <optional>

#include "comm/core/posts.h"
#include "comm/shm/ring.h"

namespace lockstep::comm {

struct ShmPeer {
  ShmPeer(const Segment& theirs, const Segment& mine, int my_rank, int its_rank)
      : rank(its_rank), segment(&theirs), out(theirs, my_rank), in(mine, its_rank) {}

  int rank;
  const Segment* segment;
  RingWriter out;
  RingReader in;
  PeerPosts posts;
  std::optional<Failure> failure;
};

}  // namespace lockstep::comm

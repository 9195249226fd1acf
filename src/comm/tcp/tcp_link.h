// Messages between workers over TCP.
//
// A thread that waits for a transfer drives: it moves bytes for all peers, spins for a moment if
// there is nothing to do, then sleeps. While nobody waits, and for signs of life, one thread of the
// link does the same, however many peers there are.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/core/link.h"
#include "comm/tcp/forming.h"

namespace lockstep::comm {

// What a worker has after forming.
struct TcpWorld {
  struct Peer {
    TcpConnection connection;
    std::string address;     // for people
    bool tagged = false;     // every frame carries tags
    bool elsewhere = false;  // on another host: it may vanish without closing a connection
  };
  int rank = 0;
  int size = 1;
  bool crowded = false;     // this host has more workers than cores
  std::vector<Peer> peers;  // by rank; this worker's own is unused
};

std::shared_ptr<Link> make_tcp_link(TcpWorld world);

}  // namespace lockstep::comm

// The exchange of arenas between the workers of a host.
//
//   pair        two workers of one host; the higher rank connects to the lower one's socket
//   stranger    a connection that has not proven the secret, and whose process is in no offer
//
//   1. every worker listens, and puts an offer in the bootstrap: its host, its socket, its arena
//   2. when a worker has all offers, it calls the lower ranks of its host and serves the higher
//      ones, all at once, with one poll(): a peer that stalls delays no other peer
//   3. a pair proves the secret to each other (arena_session.h) and swaps descriptors. Each maps
//      the other's arena, and the pair is done. A worker returns when all its pairs are done
//
// A stranger can hold one of kMostStrangers connections for kStrangerPatience at most; then it is
// dropped and logged. A worker whose process is not known here is treated as a stranger. If it is
// dropped, it calls again. A known worker that stalls is dropped, too, but not logged, and calls
// again.
//
// The socket of a worker stays open until the worker is done. So if nobody listens there any more,
// the worker is gone. A higher rank may die before it calls: its process is watched, if its process
// number means the same here.
#pragma once

#include <lockstep/arena.h>
#include <lockstep/errors.h>

#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "comm/arena/arena_session.h"
#include "comm/arena/local_socket.h"
#include "comm/arena/offer.h"

namespace lockstep::comm {

struct HandOverOptions {
  std::function<void()> look;  // called at least every 20 ms; throws if waiting has become useless
  std::vector<int> among =
      {};  // ranks that may be on this host, the same for each of them; empty: all
};

// One worker's side of the exchange with all others of its host.
//
// Threads:   one; every peer runs its own.
// Blocking:  the constructor and run() block until the deadline.
// Failure:   Timeout or PeerLost with the ranks; Mismatch if a peer hands over something else than
//            the arena of its offer; Unavailable, with this worker's rank, if there are no
//            descriptors or no memory left.
// Ownership: borrows arena and bootstrap. Closes every socket and every descriptor that it was
//            sent.
class HandOver {
 public:
  HandOver(const Arena& mine, const std::string& name, Bootstrap& bootstrap, Deadline deadline,
           HandOverOptions options = {});

  std::vector<std::optional<Arena>> run();

 private:
  using TimePoint = Deadline::Clock::time_point;

  struct Failing {
    ErrorKind kind = ErrorKind::kPeerLost;
    std::string what;
  };
  struct Peer {
    std::optional<ArenaOffer> offer;  // only of other workers of this host
    base::Fd process;  // pidfd of a higher rank, if there is one; readable when it has died
    bool called = false;
    TimePoint call_at{};    // do not call before
    std::string hindrance;  // why the last call failed
    std::optional<Arena> arena;
    std::optional<Failing> failing;

    bool pending() const { return offer && !arena && !failing; }
  };
  struct Connection {
    base::Fd socket;
    Session session;
    TimePoint opened{};
    bool from_worker = false;  // its process is in an offer, which proves nothing

    bool unproven() const { return !session.connects() && !session.proven(); }
    bool stranger() const { return unproven() && !from_worker; }
  };

  template <typename Call>
  auto on_own_account(Call&& call) const;
  void fetch_offers(Bootstrap& bootstrap, const std::string& prefix, const std::string& own,
                    std::vector<int> among);
  void watch(int rank);
  bool anybody_pending() const;

  void call_lower_ranks();
  void call(int rank);
  void wait_for_news();
  std::optional<TimePoint> next_due() const;
  void accept_all();
  bool is_worker(int process) const;
  void drop_oldest_stranger(const char* why);
  void drop_stalling();

  void serve(Connection& connection);
  bool take_arena(Connection& connection, std::vector<base::Fd> descriptors);
  void answer(Connection& connection, const Session::Reply& reply);
  void ended(Connection& connection, const std::string& why);
  void drop(Connection& connection, const std::string& why);
  void fail(int rank, ErrorKind kind, const std::string& what);
  [[noreturn]] void report() const;

  const Arena& mine_;
  Deadline deadline_;
  std::function<void()> look_;
  Party party_;
  LocalListener listener_;
  std::vector<Peer> peers_;
  std::list<Connection> connections_;
  int strangers_dropped_ = 0;
};

}  // namespace lockstep::comm

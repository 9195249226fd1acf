// The exchange of arenas between the workers of a host.
//
//   pair        two workers of one host; the higher rank connects to the lower one's socket
//   stranger    a connection that has not proven the secret, and comes from no process of the offers
//
//   1. every worker listens, and puts a offer in the bootstrap: its host, its socket, its arena
//   2. with everybody's offers known, each calls the lower ranks of its host and serves the higher
//      ones, all at once, on one poll: nobody who stalls holds up anybody else
//   3. a pair that has proven the secret to each other (session.h) swaps descriptors, each maps the
//      other's and is done; a worker returns when all its pairs are
//
// A stranger costs a slot among kMostStrangers for kStrangerPatience at most; what it may not do is
// logged. A worker that was taken for one, because its process is not known here, calls again. One that stalls does, too,
// and is not logged. The
// socket of a worker that is not done stays open, so when nobody listens there, the worker is gone. A
// higher rank that dies before it calls is missed by its process, where its number means the same.
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

// Threads:   one; the peers run theirs.
// Blocking:  the constructor and run(), until the deadline.
// Failure:   Timeout or PeerLost naming ranks; Mismatch when a peer hands over something else than
//            the arena of its offer; Unavailable naming this worker when there are no descriptors left,
//            or no memory.
// Ownership: borrows arena and bootstrap; closes every socket and every descriptor it was sent.
class HandOver {
 public:
  // `look` is called now and then; it throws when waiting has become vain.
  HandOver(const Arena& mine, const std::string& name, Bootstrap& bootstrap, Deadline deadline,
           std::function<void()> look = {});

  std::vector<std::optional<Arena>> run();

 private:
  using TimePoint = Deadline::Clock::time_point;

  struct Failing {
    ErrorKind kind = ErrorKind::kPeerLost;
    std::string what;
  };
  struct Peer {
    std::optional<ArenaOffer> offer;  // of a worker of this host that is not this one
    base::Fd process;  // of a higher rank that can be watched; readable when it has died
    bool called = false;
    TimePoint call_at{};    // not before
    std::string hindrance;  // why a call came to nothing
    std::optional<Arena> arena;
    std::optional<Failing> failing;

    bool pending() const { return offer && !arena && !failing; }
  };
  struct Connection {
    base::Fd socket;
    Session session;
    TimePoint opened{};
    bool from_worker = false;  // by its process, which proves nothing

    bool unproven() const { return !session.connects() && !session.proven(); }
    bool stranger() const { return unproven() && !from_worker; }
  };

  template <typename Call>
  auto on_own_account(Call&& call) const;
  void fetch_offers(Bootstrap& bootstrap, const std::string& prefix, const std::string& own);
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

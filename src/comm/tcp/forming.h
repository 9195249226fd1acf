// How the workers of a world over TCP find each other: every worker listens, calls all workers of
// lower ranks, and is called by those of higher ranks. When all pairs have proven the secret it
// listens no longer.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/deadline.h>

#include <chrono>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/pair_proof.h"
#include "comm/tcp/sockets.h"

namespace lockstep::comm {

// Where a worker can be called.
struct TcpPlace {
  TcpAddress address;
  std::string host;         // host_identity()
  Wire wire = Wire::kAuto;  // all must have the same
};
std::string encode(const TcpPlace& place);
// Nothing if these bytes are no place.
std::optional<TcpPlace> decode_place(std::string_view bytes);

// A connection to another worker that has proven the secret.
struct TcpConnection {
  base::Fd socket;
  std::string key_out;  // of tags
  std::string key_in;
};

// Threads:   one.
// Blocking:  run() blocks until its deadline.
// Failure:   Timeout, naming the workers that did not come; PeerLost if a worker that was called is
//            gone or has another secret, Mismatch if it is of another version. A stranger is none.
// Ownership: owns the sockets until run() returns them.
class Forming {
 public:
  Forming(base::PairWorld world, TcpListener listener, std::vector<TcpPlace> places);

  // By rank; nothing for this worker itself.
  std::vector<std::optional<TcpConnection>> run(Deadline deadline);

 private:
  using Clock = Deadline::Clock;
  // A connection whose proof is under way.
  struct Pending {
    base::Fd socket;
    base::PairProof proof;
    bool calls = false;
    bool connecting = false;
    std::string in;
    std::string out;
    Clock::time_point until;
  };
  // Calls to a worker of a lower rank.
  struct Calls {
    bool pending = false;
    int failed = 0;
    Clock::time_point next;
  };

  bool complete() const;
  void call_missing();
  void let_in();
  void poll_once(Deadline deadline);
  // False if the connection has ended.
  bool go_on(Pending& pending, short events);
  bool send(Pending& pending) const;
  bool receive(Pending& pending);
  void keep(Pending& pending);
  void give_up(const Pending& pending);
  void drop_old();
  [[noreturn]] void late() const;

  base::PairWorld world_;
  TcpListener listener_;
  std::vector<TcpPlace> places_;
  std::list<Pending> pending_;
  std::vector<Calls> calls_;
  std::vector<std::optional<TcpConnection>> proven_;
  int strangers_ = 0;
};

}  // namespace lockstep::comm

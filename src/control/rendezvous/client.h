// A worker's side of the rendezvous. A worker needs it only while the world forms.
#pragma once

#include <lockstep/bootstrap.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.h"
#include "control/rendezvous/address.h"
#include "control/rendezvous/handshake.h"

namespace lockstep::control {

// What a worker says of itself when it joins.
struct JoinRequest {
  int rank = 0;
  int size = 1;
  std::string build;                     // all workers must agree on it
  std::string engine;                    // and on this
  std::chrono::milliseconds timeout{0};  // what the user allowed, for messages
  bool in_batch = false;                 // as Candidate::in_batch
};

// A worker that has joined a generation.
//
// Threads:   one caller at a time.
// Blocking:  every call returns, or throws, by its deadline.
// Failure:   Timeout (naming the missing ranks), PeerLost, Mismatch (naming who disagrees), BadInput
//            for a secret that is not the job's. After PeerLost it stays lost; after Timeout it can
//            go on.
// Ownership: owns its connection; without done(), its end tells the others that this worker is lost.
class RendezvousClient final : public Bootstrap {
 public:
  // Tries to connect until it succeeds, and waits until every worker has joined.
  RendezvousClient(const Address& address, const std::string& secret, const JoinRequest& request,
                   Deadline deadline);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return name_; }
  std::string secret() const override { return generation_secret_; }
  void put(std::string_view key, std::string_view value, Deadline deadline) override;
  std::string get(std::string_view key, Deadline deadline) override;

  std::uint64_t generation() const { return generation_; }
  // By rank: as which rank each worker joined.
  const std::vector<int>& places() const { return places_; }
  // As in Welcome.
  int survivors() const { return survivors_; }
  bool restarted() const { return restarted_; }

  // The numeric address of this host on the connection to the rendezvous; empty on a Unix socket.
  std::string local_host() const;

  // Waits until every worker is done: from then on nobody needs the rendezvous.
  void done(Deadline deadline);

  // Leaves, and tells the others why.
  void give_up(const std::string& why) noexcept;

 private:
  bool enter(const JoinRequest& request, const std::string& secret, Deadline deadline,
             std::string& problem);

  Message ask(const Message& request, std::uint32_t id, Deadline deadline);
  enum class Arrival : std::uint8_t { kSome, kEnd, kLate };
  Arrival exchange(Deadline deadline);
  bool flush(Deadline deadline);
  [[noreturn]] void lost() const;

  Address address_;
  int rank_;
  int size_;
  std::vector<int> places_;
  int survivors_ = 0;
  bool restarted_ = false;
  std::uint64_t generation_ = 0;
  std::string name_;
  std::string generation_secret_;
  std::uint32_t last_id_ = 0;
  base::Fd fd_;
  Session session_;
};

}  // namespace lockstep::control

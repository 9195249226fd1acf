// The meeting point of a job's workers. The launcher serves one as long as the job runs; under other
// launchers rank 0 hosts one while the world forms.
#pragma once

#include <lockstep/deadline.h>

#include <utility>  // Boost 1.74's Asio uses std::exchange and does not include this

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "control/rendezvous/membership.h"
#include "control/rendezvous/sockets.h"

namespace lockstep::control {

struct ServerOptions {
  // What the result means.
  int world_size = 1;
  std::string
      secret;  // may be empty on a Unix socket only: there the kernel tells which user connects

  // For a job whose workers may leave and join; world_size is then the number of places.
  std::optional<MembershipRules> elastic = {};

  // How soon strangers are dropped.
  std::chrono::milliseconds time_to_prove{
      5000};                // less drops strangers sooner, more allows slow hosts
  int most_unproven = 256;  // connections that have not proved the secret; the oldest is dropped
};

// Serves a Listener on an io_context of the caller: workers prove the job's secret, join, put and
// get. It starts no thread; everything happens inside io_context::run().
//
// Threads:   construct, call and destroy where the io_context runs, or while it does not run.
// Blocking:  never.
// Failure:   the constructor throws BadInput for a TCP listener without a secret. Strangers, lost
//            workers and full tables are handled inside and logged.
// Ownership: owns the listener and its connections; the io_context must outlive it.
class RendezvousServer {
 public:
  RendezvousServer(boost::asio::io_context& context, Listener listener,
                   const ServerOptions& options);
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;
  ~RendezvousServer();

  // What workers are told in LOCKSTEP_RENDEZVOUS.
  const Address& address() const;

  // Accepts no new connections, sends late workers away, and calls `when_empty` when the last worker
  // has left. If the last generation failed, it first waits until every rank has heard of it.
  void close(std::function<void()> when_empty);

  // Only for a job whose workers may leave and join. set_alive: the places whose processes run now. A new process has a
  // place only when it has been started, and a dead one has none.
  void set_alive(std::set<int> places);
  // The job is to have the places below this number.
  void set_wanted(int places);
  // The host of these places leaves.
  void dismiss(const std::vector<int>& places);
  // A host has joined: there are so many places now.
  void set_places(int places);
  struct Events {
    std::function<void(std::uint64_t generation, const std::vector<int>& places)> formed;
    std::function<void(int count)> newcomers;  // so many wait to join the others, or are to leave
    std::function<void(int place)>
        expelled;  // others wait for it in vain: its process is to be ended
    // The others go on without it, because it is not to stay: its process is to be ended.
    std::function<void(int place)> dismissed;
  };
  void listen(Events events);

  // How many connections of strangers were dropped so far.
  std::uint64_t strangers() const;

  // How many connections there are, before and after the proof.
  std::size_t connections() const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

// A RendezvousServer with a thread of its own, on which no signal is delivered. Rank 0 has one under torchrun, mpirun
// or srun.
//
// Threads:   one caller at a time.
// Blocking:  finish() returns by its deadline; the destructor does not wait for anybody.
// Failure:   Unavailable when no thread can be started.
// Ownership: the thread and all connections end with it.
class HostedRendezvous {
 public:
  HostedRendezvous(Listener listener, const ServerOptions& options);
  ~HostedRendezvous();

  const Address& address() const;

  // Lets the connected workers read their last answer and go; those still there at the deadline
  // are cut off.
  void finish(Deadline deadline);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::control

// The meeting point of a job's workers.
#pragma once

#include <lockstep/deadline.h>

#include <utility>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "control/rendezvous/sockets.h"

namespace lockstep::control {

struct ServerOptions {
  // What the result means.
  int world_size = 1;
  std::string secret;  // may be empty on a Unix socket only: there the kernel vouches for the user

  // How fast strangers are got rid of.
  std::chrono::milliseconds time_to_prove{
      5000};                // shorter sheds strangers sooner, longer bears slow hosts
  int most_unproven = 256;  // connections that have not proved the secret; the oldest gives way
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
  RendezvousServer(boost::asio::io_context& context, Listener listener, ServerOptions options);
  RendezvousServer(RendezvousServer&&) noexcept;
  RendezvousServer& operator=(RendezvousServer&&) noexcept;
  ~RendezvousServer();

  // What workers are told in LOCKSTEP_RENDEZVOUS.
  const Address& address() const;

  // Accepts nobody any more, sends away who has come too late, and calls `when_empty` once the last
  // worker has left. If the last generation failed, it first waits for every rank to hear of it.
  void close(std::function<void()> when_empty);

  // How many connections were dropped as strangers' so far.
  std::uint64_t strangers() const;

  // How many connections there are, proven or not.
  std::size_t connections() const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

// A RendezvousServer with a thread of its own, on which no signal is delivered. Under torchrun, mpirun or srun rank 0 hosts
// one while the world forms: nobody has started a launcher that could.
//
// Threads:   one caller at a time.
// Blocking:  finish() returns by its deadline; the destructor does not wait for anybody.
// Failure:   Unavailable when no thread can be started.
// Ownership: the thread and all connections end with it.
class HostedRendezvous {
 public:
  HostedRendezvous(Listener listener, ServerOptions options);
  HostedRendezvous(HostedRendezvous&&) noexcept;
  ~HostedRendezvous();

  const Address& address() const;

  // Lets the connected workers read their last answer and go; those still there at the deadline
  // are cut off.
  void finish(Deadline deadline);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Strangers may knock thousands of times a second, and a log that they fill is an attack, too. Lets at most `most` lines through in every window of time. Pure: the caller brings the clock.
class LogLimiter {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  LogLimiter(int most, std::chrono::milliseconds window) : most_(most), window_(window) {}

  // Nothing: swallow this line. A number: log it; so many were swallowed since the last one.
  std::optional<std::uint64_t> pass(TimePoint now);

 private:
  int most_;
  std::chrono::milliseconds window_;
  TimePoint window_end_{};
  int passed_ = 0;
  std::uint64_t swallowed_ = 0;
};

}  // namespace lockstep::control

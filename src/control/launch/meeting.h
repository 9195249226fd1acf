// How the launchers of a job find each other, before any worker is started.
#pragma once

#include <utility>  // Boost 1.74's Asio uses std::exchange and does not include this

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <string>

#include "control/launch/judge.h"
#include "control/launch/nodes.h"
#include "control/launch/options.h"
#include "control/launch/program.h"
#include "control/rendezvous/sockets.h"

namespace lockstep::control {

// Standard input of a launcher that `--hosts` has started on another host: a line with the secret, then one byte for
// each signal, and a zero every second. Its end, or 10 s of silence, counts as SIGHUP, as a closed terminal does.
//
// Threads:   where the io_context runs.
// Blocking:  the constructor waits for the secret, 30 s at most.
// Failure:   the constructor throws BadInput when no secret comes.
// Ownership: reads a duplicate of standard input.
class Lifeline {
 public:
  explicit Lifeline(boost::asio::io_context& context);

  const std::string& secret() const { return secret_; }
  std::function<void(int signal)> when_signal;

 private:
  void wait();
  void read();

  void expect_more();
  void hang_up();

  boost::asio::posix::stream_descriptor input_;
  boost::asio::steady_timer silence_;
  std::string secret_;
};

// The launchers of a job, when they have met; on one host, this launcher.
struct Meeting {
  HostMap map;
  NodeStart start;
  std::string secret;  // of the workers
  Listener listener;   // where node 0 serves the workers
  std::unique_ptr<Lifeline> lifeline;
  std::unique_ptr<NodeHost> host;    // of node 0 of several
  std::unique_ptr<NodeGuest> guest;  // of every other node

  std::unique_ptr<Judge> make_judge(boost::asio::io_context& context, const RunOptions& options,
                                    const std::string& program) const;

  // This launcher cannot start its workers: tells the others.
  void give_up(const CannotBegin& reason) const;
};

// Fills `meeting`. If the program cannot run here, the other launchers hear of it. On several hosts it sets the choices
// of node 0 in `options`. Throws CannotBegin, or BadInput for a wrong option.
void meet(boost::asio::io_context& context, RunOptions& options, const Program& program,
          Meeting& meeting);

}  // namespace lockstep::control

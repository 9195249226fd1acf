// The launcher's end of the pipes to its keeper, as events.
#pragma once

#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>

#include "control/launch/keeper.h"

namespace lockstep::control {

// Threads:   where the io_context runs.
// Blocking:  never; reap() only after when_gone.
// Failure:   when_gone, once, when the keeper has ended for whatever reason.
// Ownership: owns the pipes and reaps the process; the io_context must outlive it.
class KeeperLink {
 public:
  KeeperLink(boost::asio::io_context& context, Keeper keeper);

  std::function<void(const KeeperEvent&)> when_event;
  std::function<void()> when_gone;

  void start() { wait(); }
  bool gone() const { return !events_.is_open(); }

  // A signal for every worker that lives.
  void forward(int signal);

  // Lets the keeper kill everything that is left, and exit.
  void release();

  // For a keeper that did not: the launcher then ends its family itself.
  void kill();

  // How it ended, as a wait status.
  int reap();

 private:
  void wait();
  void read_events();

  pid_t pid_;
  boost::asio::posix::stream_descriptor events_;
  base::Fd lifeline_;
};

}  // namespace lockstep::control

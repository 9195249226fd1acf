// The launcher's end of the pipes to its keeper, as events.
//
// A worker that the kernel does not end within 5 s of its SIGKILL counts as ended, and its end, when it comes, is left out.
// It sits in the kernel, for a disk or a network that does not answer, and never runs an instruction of its own again. So
// the others can go on: they move to new memory, and drop what they shared with it.
#pragma once

#include <sys/types.h>

#include <utility>  // Boost 1.74's Asio uses std::exchange and does not include this

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <set>

#include "base/fd.h"
#include "control/launch/keeper.h"

namespace lockstep::control {

// Threads:   where the io_context runs.
// Blocking:  never; reap() only after when_gone.
// Failure:   when_gone, once, when the keeper has ended, for any reason.
// Ownership: owns the pipes and reaps the process; the io_context must outlive it.
class KeeperLink {
 public:
  // `kill_limit`: tests have less time.
  KeeperLink(boost::asio::io_context& context, Keeper keeper,
             std::chrono::milliseconds kill_limit = std::chrono::seconds(5));

  std::function<void(const KeeperEvent&)> when_event;
  std::function<void()> when_gone;
  // A worker counts as ended though its process has not.
  std::function<void(int worker, pid_t pid)> when_stuck;

  void start() { wait(); }
  bool gone() const { return !events_.is_open(); }

  void send(const KeeperOrder& order);

  // Lets the keeper kill everything that is left, and exit. One that does not is killed: the launcher then ends its
  // family itself.
  void release();

  // How it ended, as a wait status.
  int reap();

 private:
  void wait();
  void read_events();
  void take(const KeeperEvent& event);
  void await_end(int worker);
  void give_up(int worker);

  pid_t pid_;
  boost::asio::io_context& context_;
  std::chrono::milliseconds kill_limit_;
  boost::asio::posix::stream_descriptor events_;
  base::Fd lifeline_;
  boost::asio::steady_timer limit_;
  std::map<int, pid_t> running_;                       // by worker
  std::map<pid_t, boost::asio::steady_timer> killed_;  // that have not ended yet
  std::set<pid_t> stuck_;
};

}  // namespace lockstep::control

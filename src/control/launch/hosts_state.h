// The decisions of `--hosts`: what to tell the launchers that were started on other hosts, when to give up, and the exit
// code. Pure: no processes, no clock.
//
// Launchers that have met end together, with one exit code, and tell why. What is left to decide here: a host that
// cannot be reached, one without `lockstep`, one whose remote shell hangs or ends. Then the lifelines of all hosts are
// closed, which ends them. If workers may leave, the first host decides: a launcher of another one that ends by itself has
// lost it, or has left. A launcher that begins says so (kBegun). Before all have begun there are no workers, and
// nobody needs time to end.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "control/launch/job_state.h"
#include "control/rendezvous/node_message.h"

namespace lockstep::control {

// One host of --hosts.
struct HostSpec {
  std::string name;  // as the remote shell takes it: "node0", "me@10.0.0.7"
  int workers = 0;

  bool operator==(const HostSpec&) const = default;
};

// A remote shell that ends with 0 has perhaps started nothing: a profile or a forced command has ended it. So a launcher
// that --hosts has started says in this way that all is done. Of a worker that exits with this code itself, only that it
// failed is told.
inline constexpr int kDoneThere = 121;
int code_for_coordinator(int code);
// The end of a remote shell, as it is meant. One that has started nothing has failed, with a value that no process has.
inline constexpr int kNothingRan = 256;
WorkerEnd end_of_shell(WorkerEnd end);

// A launcher that --hosts has started prints this line first. It is not shown.
inline constexpr const char* kBegun = "lockstep: the launcher of this host has begun";

// Reads "node0:4,me@node1:4". A host without a number gets `workers`, if that is not 0. BadInput for anything else.
std::vector<HostSpec> parse_hosts(const std::string& list, int workers);

struct HostsRules {
  std::chrono::nanoseconds grace = std::chrono::seconds(10);      // that workers have to end
  std::chrono::nanoseconds to_begin = std::chrono::seconds(300);  // until every launcher has begun
  std::string shell = "ssh";                                      // as the user would type it
  bool elastic =
      false;  // the first host goes on without the others, as long as enough workers are left
};

// Threads:   one caller at a time.
// Blocking:  never; time is an argument.
// Failure:   none.
// Ownership: plain values.
class HostsState {
 public:
  using Clock = std::chrono::steady_clock;

  struct Orders {
    int signal = 0;        // for the first host, which passes it on; 0: none
    bool hang_up = false;  // close the lifelines
    bool release = false;  // kill the remote shells that are left
  };

  HostsState(std::vector<HostSpec> hosts, HostsRules rules, Clock::time_point now);

  // The launcher of a host has begun. False if that was known.
  bool on_begun(int host) {
    return !std::exchange(hosts_[static_cast<std::size_t>(host)].begun, true);
  }
  // The remote shell of a host has ended. What it has printed may be read later: call verdict() after that.
  Orders on_end(const WorkerEnd& end, Clock::time_point now);
  Orders on_signal(int signal, Clock::time_point now);
  Orders on_output_closed(int error, Clock::time_point now);
  Orders on_time(Clock::time_point now);

  std::optional<Clock::time_point> deadline() const { return deadline_; }
  bool ending() const { return cause_ != JobState::Cause::kNone; }
  bool released() const { return released_; }
  NodeVerdict verdict() const;

 private:
  struct Host {
    HostSpec spec;
    bool begun = false;
    bool killed = false;  // its shell, by us: it did not end
    bool left = false;    // the first host goes on without it
    std::optional<WorkerEnd> end;
  };

  Orders end(JobState::Cause cause, int signal, Clock::time_point now);
  Orders hang_up(Clock::time_point now);
  bool all_begun() const;
  bool all_ended() const;
  bool agreed() const;
  Clock::duration grace() const;
  const WorkerEnd& cause() const;  // of the failures
  int failure_code() const;
  std::vector<std::string> what_happened() const;
  std::vector<std::string> deaf_shells() const;
  std::string never_begun(const WorkerEnd& end, const std::vector<std::string>& names) const;
  std::string not_begun_in_time(const std::vector<std::string>& names) const;
  std::string killed_shells(const std::vector<std::string>& names) const;
  std::string ended_before_others(const WorkerEnd& end) const;

  HostsRules rules_;
  std::vector<Host> hosts_;
  std::vector<WorkerEnd> failed_;  // in order; only the first if it came after the lifelines' end
  JobState::Cause cause_ = JobState::Cause::kNone;
  int output_error_ = 0;
  int signal_ = 0;
  bool succeeded_ = false;  // somebody has
  bool late_ = false;       // not all launchers have begun in time
  bool hung_up_ = false;
  bool released_ = false;
  std::optional<Clock::time_point> deadline_;
};

}  // namespace lockstep::control

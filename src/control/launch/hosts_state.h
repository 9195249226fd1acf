// The decisions of `--hosts`: what to tell the launchers that were started on other hosts, when to give up, and the exit
// code. Pure: no processes, no clock.
//
// Launchers that have met end together, with one exit code. What is left to decide here: a host that cannot be reached,
// one without `lockstep`, one whose connection ends. Then the lifelines of all hosts are closed, which ends them.
#pragma once

#include <chrono>
#include <optional>
#include <string>
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

// Reads "node0:4,me@node1:4". A host without a number gets `workers`, if that is not 0. BadInput for anything else.
std::vector<HostSpec> parse_hosts(const std::string& list, int workers);

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

  HostsState(std::vector<HostSpec> hosts, std::chrono::nanoseconds grace);

  // The remote shell of a host has ended.
  Orders on_end(const WorkerEnd& end, Clock::time_point now);
  Orders on_signal(int signal, Clock::time_point now);
  Orders on_output_closed(int error, Clock::time_point now);
  Orders on_time(Clock::time_point now);

  std::optional<Clock::time_point> deadline() const { return deadline_; }
  bool ending() const { return cause_ != JobState::Cause::kNone; }
  bool released() const { return released_; }
  NodeVerdict verdict() const;

 private:
  Orders end(JobState::Cause cause, Orders orders, Clock::time_point deadline);
  bool all_ended() const;

  std::vector<HostSpec> hosts_;
  Clock::duration for_the_end_;  // from the end of the lifelines until what is left is killed
  std::vector<std::optional<WorkerEnd>> ends_;
  std::optional<WorkerEnd> first_;  // that failed
  JobState::Cause cause_ = JobState::Cause::kNone;
  int output_error_ = 0;
  int signal_ = 0;
  bool hung_up_ = false;
  bool released_ = false;
  std::optional<Clock::time_point> deadline_;
};

}  // namespace lockstep::control

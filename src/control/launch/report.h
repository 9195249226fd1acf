// What the launcher says in the end: who failed first, and what else the user should know.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "control/launch/job_state.h"
#include "control/launch/keeper.h"
#include "control/launch/options.h"

namespace lockstep::control {

class Output;

// Collects facts while the job runs and turns them into lines at its end.
//
// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   none.
// Ownership: plain values.
class JobReport {
 public:
  JobReport(const RunOptions& options, std::string program);

  void add(const KeeperEvent& event);
  void keeper_lost(int wait_status) { keeper_status_ = wait_status; }
  void overtime(int live) { overtime_ = live; }
  void not_ended(std::vector<pid_t> left) { left_ = std::move(left); }

  // Whether a worker that another one lost is stopped now; what was seen first counts.
  void look_at(int rank);

  // The worker's exec or fork failed; its process's own end says nothing.
  bool not_started(int rank) const { return not_started_[static_cast<std::size_t>(rank)]; }

  // Lines that are always shown: the first failure with the worker's last lines, lost logs …
  std::vector<std::string> failures(const JobState& state, const Output& output) const;

  // What could not be written of the output; always shown, and last, when the bytes are counted.
  static std::vector<std::string> lost_output(const JobState& state, const Output& output);

  // Lines that --quiet leaves out.
  std::vector<std::string> notes(const JobState& state) const;

 private:
  std::vector<std::string> first_failure(const JobState& state, const Output& output) const;
  std::string what_happened(const JobState& state) const;
  std::string who(int rank) const;
  std::string last_words(int rank, bool witness, bool none) const;

  int workers_;
  bool leader_keeps_output_;  // what it printed last is not known here
  std::string program_;
  std::vector<pid_t> pids_;
  std::vector<bool> not_started_;
  int swept_ = 0;
  int overtime_ = 0;
  int keeper_status_ = 0;
  std::vector<pid_t> left_;
  std::map<int, bool> stopped_;  // by rank, of those that were looked at
};

}  // namespace lockstep::control

// `lockstep train`: starts its workers.
#pragma once

#include <ctime>
#include <string>
#include <vector>

namespace lockstep::app {

// The exit code of every worker of a job that was stopped early, in order and with a checkpoint if it has a place for
// one: EX_TEMPFAIL of sysexits.h, try again later. `train && deploy` must not deploy.
inline constexpr int kStoppedEarly = 75;

int train(const std::vector<std::string>& arguments);

// Where a run is kept when nobody said where: a new directory for each, below the current one.
inline constexpr const char* kRunsDirectory = "lockstep-runs";

// "lockstep-runs/cnn-20261116-052021"; from the second attempt on "…-2".
std::string run_name(const std::string& model, const std::tm& began, int attempt);

// Threads:   one caller.
// Blocking:  on the disk.
// Failure:   BadInput, with what to do, when it cannot be made.
// Ownership: removes the directory in the end if nothing has been kept there.
class RunDirectory {
 public:
  // One that was not there, also if another job starts at the same moment.
  explicit RunDirectory(const std::string& model);
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;
  ~RunDirectory();

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace lockstep::app

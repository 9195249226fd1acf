// `lockstep train`: starts its workers.
#pragma once

#include <ctime>
#include <string>
#include <vector>

namespace lockstep::app {

// The exit code of every worker of a job that was stopped early, in order, and with a checkpoint if one is kept. It is
// not 0, because `train && deploy` must not deploy: it is EX_TEMPFAIL of sysexits.h, try again later.
inline constexpr int kStoppedEarly = 75;

int train(const std::vector<std::string>& arguments);

// Where run directories are made if the user names none, below the current directory.
inline constexpr const char* kRunsDirectory = "lockstep-runs";

// "lockstep-runs/cnn-20261116-052021"; from the second attempt on "…-2".
std::string run_name(const std::string& model, const std::tm& began, int attempt);

// A new run directory for one job.
//
// Threads:   one caller.
// Blocking:  on the disk.
// Failure:   BadInput, with what to do, when it cannot be made.
// Ownership: its destructor removes the directory if it is empty.
class RunDirectory {
 public:
  // Makes one that did not exist, even if another job starts at the same moment.
  explicit RunDirectory(const std::string& model);
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;
  ~RunDirectory();

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace lockstep::app

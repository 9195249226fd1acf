// A lock file, by flock(2): the kernel releases the lock however its holder ends, also by a kill or a power cut. Other
// hosts see it where their common file system has locks.
#pragma once

#include <lockstep/deadline.h>

#include <optional>
#include <string>

#include "base/fd.h"

namespace lockstep::base {

// Keeps a second job out of a run directory, as long as it lives.
//
// Threads:   one caller at a time; two holders in one process keep each other out like processes.
// Blocking:  take(), until the deadline.
// Failure:   BadInput when the file cannot be made. Where the file system has no locks, everybody gets in, and one
//            line of the log says so.
// Ownership: removes the file when it is destroyed.
class FileLock {
 public:
  // Nothing if somebody else still holds it at the deadline.
  static std::optional<FileLock> take(const std::string& path, Deadline deadline);

  // "pid 12 on host a"; empty if the file does not say.
  static std::string holder_of(const std::string& path);

  FileLock(FileLock&&) noexcept = default;
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

 private:
  FileLock(std::string path, Fd file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  Fd file_;  // none where there are no locks
};

}  // namespace lockstep::base

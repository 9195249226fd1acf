#include "app/train/run_directory.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/file_lock.h"
#include "base/files.h"
#include "formats/checkpoint_file.h"

namespace lockstep::app {
namespace {

// Runs of one model that start within one second.
constexpr int kMostAttempts = 10'000;

// False, with errno, if it is there already or cannot be made.
bool make_new(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) == 0) return true;
  if (errno != ENOENT) return false;
  // Another run may remove the empty one above between the two lines.
  return (::mkdir(kRunsDirectory, 0777) == 0 || errno == EEXIST) &&
         ::mkdir(path.c_str(), 0777) == 0;
}

// A job that was killed leaves its lock file. The next job that takes the lock removes it.
void remove_free_lock(const std::string& directory) noexcept {
  const std::string path = base::join_path(directory, formats::kLockFile);
  try {
    if (base::exists(path)) base::FileLock::take(path, Deadline::after({}));
  } catch (const std::exception&) {  // it stays
  }
}

}  // namespace

std::string run_name(const std::string& model, const std::tm& began, int attempt) {
  std::array<char, 32> time{};
  std::strftime(time.data(), time.size(), "%Y%m%d-%H%M%S", &began);
  return fmt::format("{}/{}-{}{}", kRunsDirectory, model, time.data(),
                     attempt == 1 ? "" : fmt::format("-{}", attempt));
}

RunDirectory::RunDirectory(const std::string& model) {
  const std::time_t now = std::time(nullptr);
  std::tm began{};
  ::localtime_r(&now, &began);
  for (int attempt = 1; attempt <= kMostAttempts; ++attempt) {
    path_ = run_name(model, began, attempt);
    if (make_new(path_)) return;
    if (errno != EEXIST && errno != ENOENT) break;
  }
  throw BadInput(
      fmt::format("cannot make {} for checkpoints: {}; choose a place with --checkpoint DIR, or "
                  "keep none with --checkpoint none",
                  path_, std::strerror(errno)));
}

RunDirectory::~RunDirectory() {
  remove_free_lock(path_);
  if (::rmdir(path_.c_str()) == 0) ::rmdir(kRunsDirectory);
}

}  // namespace lockstep::app

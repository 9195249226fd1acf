#include "base/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>

#include "base/check.h"
#include "base/files.h"

namespace lockstep::base {
namespace {

constexpr std::string_view kMark = ".lockstep-tmp-";
// Names to try. Others may have our PID: writers on another host or in another PID namespace, and
// stale files where the file system has no locks.
constexpr int kMostAttempts = 1000;

std::atomic<int> next_error{0};  // of fail_next_file()

bool is_full(int error) {
  return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

// Errors that the caller can mend by another path or other permissions. All others are the disk's.
bool is_path_problem(int error) {
  switch (error) {
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case ETXTBSY:
      return true;
    default:
      return false;
  }
}

// The file that a link names. Renaming over the link itself would replace the link.
std::string follow_links(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISLNK(info.st_mode)) return path;
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr),
                                                         &std::free);
  if (!real) {
    throw BadInput(
        fmt::format("cannot write {}: it is a link to a file that is not there ({}); "
                    "remove the link",
                    path, std::strerror(errno)));
  }
  return real.get();
}

// Whether this is what temporary_name() puts behind the mark: "12" or "12-3".
bool is_writer_id(std::string_view text) {
  const std::size_t dash = std::min(text.find('-'), text.size());
  const auto digits = [](std::string_view part) {
    return !part.empty() &&
           std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  return digits(text.substr(0, dash)) && (dash == text.size() || digits(text.substr(dash + 1)));
}

// Some file systems cannot sync a directory and say so; there is nothing more to do there.
int sync_directory(int directory) {
  if (::fsync(directory) == 0 || errno == EINVAL || errno == ENOTSUP) return 0;
  return errno;
}

// Takes a writer's lock on its temporary file. False, with errno, if another writer holds it, or if
// the file system has no locks.
bool lock_now(int fd) {
  return ::flock(fd, LOCK_EX | LOCK_NB) == 0;
}

// Removes the temporary files of dead writers, where `is_target` says so of the name of the file that they wrote.
void remove_stale(int directory, const std::string& folder,
                  const std::function<bool(std::string_view)>& is_target) {
  for (const std::string& name : names_in(folder)) {
    const std::size_t mark = name.find(kMark);
    if (!name.starts_with('.') || mark == std::string::npos) continue;
    const std::string_view text = name;
    if (!is_target(text.substr(1, mark - 1)) || !is_writer_id(text.substr(mark + kMark.size())))
      continue;
    const Fd stale(::openat(directory, name.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!stale || !lock_now(stale.get())) continue;
    // Since it was opened, its writer may have ended and another one may have taken the name.
    if (is_named(stale.get(), directory, name.c_str(), AT_SYMLINK_NOFOLLOW))
      ::unlinkat(directory, name.c_str(), 0);
  }
}

}  // namespace

void remove_unfinished(const std::string& directory, const std::string& prefix) {
  const Fd open(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!open) return;
  remove_stale(open.get(), directory,
               [&](std::string_view name) { return name.starts_with(prefix); });
}

AtomicFile::AtomicFile(std::string path, Temporary temporary) : path_(std::move(path)) {
  const std::string real = follow_links(path_);
  const std::size_t slash = real.rfind('/');
  folder_ = slash == std::string::npos ? "." : slash == 0 ? "/" : real.substr(0, slash);
  name_ = slash == std::string::npos ? real : real.substr(slash + 1);
  struct stat info {};
  existed_ = ::stat(real.c_str(), &info) == 0;
  if (name_.empty() || (existed_ && !S_ISREG(info.st_mode))) {
    throw BadInput(fmt::format("cannot write {}: it is not a regular file; name a file", path_));
  }
  if (existed_) mode_ = info.st_mode & 0777;
  directory_.reset(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory_) fail("cannot open its directory", errno);
  remove_stale(directory_.get(), folder_, [this](std::string_view name) { return name == name_; });
  if (temporary == Temporary::kNamed || !open_unnamed()) open_named();
  if (existed_ && ::fchmod(file_.get(), mode_) != 0 && errno != EPERM) {
    const int error = errno;
    if (!temporary_.empty()) ::unlinkat(directory_.get(), temporary_.c_str(), 0);
    fail("cannot set the permissions", error);
  }
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlinkat(directory_.get(), temporary_.c_str(), 0);
}

bool AtomicFile::open_unnamed() {
  file_.reset(::openat(directory_.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, mode_));
  if (!file_) {
    // EISDIR: a kernel without O_TMPFILE; EOPNOTSUPP: such a file system.
    if (errno == EISDIR || errno == EOPNOTSUPP || errno == EINVAL) return false;
    fail("cannot make a file there", errno);
  }
  // It gets its name through /proc, which some containers do not have.
  if (::access(fmt::format("/proc/self/fd/{}", file_.get()).c_str(), F_OK) != 0) return false;
  // For the moments of commit() in which it has the hidden name: other writers see that this one lives.
  lock_now(file_.get());
  return true;
}

void AtomicFile::open_named() {
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    const std::string name = temporary_name(attempt);
    file_.reset(
        ::openat(directory_.get(), name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, mode_));
    if (!file_ && errno == EEXIST) continue;
    if (!file_) fail("cannot make a file there", errno);
    // Before we lock the new file, another writer may take it for a stale one: it locks the file and
    // then removes it. In both cases we try the next name.
    if (!lock_now(file_.get()) && errno == EWOULDBLOCK) continue;
    struct stat info {};
    if (::fstat(file_.get(), &info) == 0 && info.st_nlink == 0) continue;
    temporary_ = name;
    return;
  }
  fail("cannot find a free name for a temporary file", EEXIST);
}

void AtomicFile::write(std::string_view bytes) {
  LOCKSTEP_CHECK(static_cast<bool>(file_), "nothing is written after commit()");
  if (const int error = next_error.exchange(0)) fail("cannot write", error);
  while (!bytes.empty()) {
    const ssize_t done = ::write(file_.get(), bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("cannot write", errno);
    bytes.remove_prefix(static_cast<std::size_t>(done));
  }
}

void AtomicFile::give_name() {
  const std::string unnamed = fmt::format("/proc/self/fd/{}", file_.get());
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    const std::string name = temporary_name(attempt);
    if (::linkat(AT_FDCWD, unnamed.c_str(), directory_.get(), name.c_str(), AT_SYMLINK_FOLLOW) ==
        0) {
      temporary_ = name;
      return;
    }
    if (errno != EEXIST) fail("cannot name the written file", errno);
  }
  fail("cannot find a free name for a temporary file", EEXIST);
}

void AtomicFile::commit() {
  LOCKSTEP_CHECK(static_cast<bool>(file_), "commit() comes once");
  // Before it gets its name: after a power cut the name must not mean an empty file.
  if (::fsync(file_.get()) != 0) fail("cannot bring it to the disk", errno);
  if (temporary_.empty()) give_name();
  if (::renameat(directory_.get(), temporary_.c_str(), directory_.get(), name_.c_str()) != 0) {
    fail("cannot put the new file in place", errno);
  }
  temporary_.clear();
  file_.reset();
  if (const int error = sync_directory(directory_.get())) {
    throw Unavailable(
        fmt::format("{} is written, but {} cannot be brought to the disk ({}): a "
                    "power cut may undo it; check the disk",
                    path_, folder_, std::strerror(error)));
  }
}

std::string AtomicFile::temporary_name(int attempt) const {
  std::string name = fmt::format(".{}{}{}", name_, kMark, ::getpid());
  if (attempt > 0) name += fmt::format("-{}", attempt);
  return name;
}

void AtomicFile::fail(const char* what, int error) const {
  const char* earlier = existed_ ? "the earlier file is untouched" : "nothing was left there";
  if (is_full(error)) {
    throw Unavailable(fmt::format("no space left in {} while writing {} ({}): make room; {}",
                                  folder_, path_, std::strerror(error), earlier));
  }
  const std::string text =
      fmt::format("writing {}: {} ({}); {}", path_, what, std::strerror(error), earlier);
  if (!is_path_problem(error)) throw Unavailable(text + "; check the disk");
  throw BadInput(text + (error == ENOENT ? "; create the directory first"
                                         : "; choose another path or correct its permissions"));
}

void fail_next_file(int error) {
  next_error.store(error);
}

void write_file(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

}  // namespace lockstep::base

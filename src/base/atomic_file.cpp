#include "base/atomic_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/check.h"
#include "base/files.h"

namespace lockstep::base {
namespace {

constexpr std::string_view kMark = ".lockstep-tmp-";
// Names taken by others of our PID (another host, another namespace, a lock-less file system).
constexpr int kMostAttempts = 1000;

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

bool is_full(int error) {
  return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

// What the caller can set right by another path or other permissions; the rest is the disk's.
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

// "12" or "12-3", what follows the mark.
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

// A writer's lock on its temporary; false, with errno, when someone holds it, or there are no locks here.
bool lock_now(int fd) {
  return ::flock(fd, LOCK_EX | LOCK_NB) == 0;
}

}  // namespace

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
  open_directory();
  remove_stale();
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

void AtomicFile::open_directory() {
  directory_.reset(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory_) fail("cannot open its directory", errno);
}

void AtomicFile::remove_stale() const {
  const int copy = ::openat(directory_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, CloseDirectory> listing(copy < 0 ? nullptr : ::fdopendir(copy));
  if (!listing) return;
  const std::string prefix = "." + name_ + std::string(kMark);
  while (const dirent* entry = ::readdir(listing.get())) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with(prefix) || !is_writer_id(name.substr(prefix.size()))) continue;
    const Fd stale(
        ::openat(directory_.get(), entry->d_name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!stale || !lock_now(stale.get())) continue;
    // Its writer may have come to its end, and another begun.
    if (is_named(stale.get(), directory_.get(), entry->d_name, AT_SYMLINK_NOFOLLOW)) {
      ::unlinkat(directory_.get(), entry->d_name, 0);
    }
  }
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
    // Between the lines above and below another writer may take it for a dead one's: it locks it, and then removes it.
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

// First another name, which then takes the place of `kept`: at no moment is one of the two files without a name.
void AtomicFile::keep_earlier(const std::string& kept) const {
  const std::string hidden = fmt::format(".{}.lockstep-keep", kept);
  ::unlinkat(directory_.get(), hidden.c_str(), 0);
  if (::linkat(directory_.get(), name_.c_str(), directory_.get(), hidden.c_str(), 0) != 0) {
    if (errno == ENOENT || errno == EPERM || errno == EOPNOTSUPP || errno == EMLINK) return;
    fail("cannot keep the earlier file", errno);
  }
  if (::renameat(directory_.get(), hidden.c_str(), directory_.get(), kept.c_str()) != 0) {
    const int error = errno;
    ::unlinkat(directory_.get(), hidden.c_str(), 0);
    fail("cannot keep the earlier file", error);
  }
  ::unlinkat(directory_.get(), hidden.c_str(), 0);  // still there, if both were names of one file
}

void AtomicFile::commit(const std::string& kept) {
  LOCKSTEP_CHECK(static_cast<bool>(file_), "commit() comes once");
  if (::fsync(file_.get()) != 0) fail("cannot bring it to the disk", errno);
  if (temporary_.empty()) give_name();
  if (!kept.empty()) keep_earlier(kept);
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

void write_file(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

}  // namespace lockstep::base

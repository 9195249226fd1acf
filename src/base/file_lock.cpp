#include "base/file_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <thread>

#include "base/files.h"
#include "base/log.h"

namespace lockstep::base {
namespace {

constexpr std::chrono::milliseconds kPause{20};
constexpr std::size_t kMostOfHolder = 200;

// Writes who holds the lock, for messages only. So a full disk is no reason to refuse the lock.
void sign(int fd) {
  std::array<char, HOST_NAME_MAX + 1> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  const std::string text = fmt::format("pid {} on host {}\n", ::getpid(), host.data());
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, text.data(), text.size(), 0) < 0) return;
}

}  // namespace

std::optional<FileLock> FileLock::take(const std::string& path, Deadline deadline) {
  for (;;) {
    Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!file)
      throw BadInput(fmt::format("cannot make the lock file {}: {}", path, std::strerror(errno)));
    const bool locked = ::flock(file.get(), LOCK_EX | LOCK_NB) == 0;
    // The holder before may have removed the file. Then the lock is on a file that nobody else will find: open again.
    if (locked && is_named(file.get(), AT_FDCWD, path.c_str(), 0)) {
      sign(file.get());
      return FileLock(path, std::move(file));
    }
    if (!locked && errno != EWOULDBLOCK && errno != EINTR) {
      log(LogLevel::kWarn, "cannot lock {} ({}): nothing keeps a second job out of that directory",
          path, std::strerror(errno));
      return FileLock(path, Fd());
    }
    if (deadline.expired()) return std::nullopt;
    std::this_thread::sleep_for(kPause);  // flock(2) knows no deadline
  }
}

std::string FileLock::holder_of(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string text(kMostOfHolder, '\0');
  const ssize_t got = file ? ::read(file.get(), text.data(), text.size()) : 0;
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  const auto end =
      std::find_if(text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; });
  return {text.begin(), end};
}

FileLock::~FileLock() {
  // While the lock is still held: nobody else can have locked the file of this name yet.
  if (file_) ::unlink(path_.c_str());
}

}  // namespace lockstep::base

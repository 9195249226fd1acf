// File descriptors that close themselves, and the loops around read and write that every caller
// needs.
#pragma once

#include <lockstep/deadline.h>

#include <string>
#include <string_view>
#include <utility>

namespace lockstep::base {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

struct Pipe {
  Fd read;
  Fd write;
};
Pipe make_pipe();  // close-on-exec; Unavailable when the process has no descriptors left

void set_nonblocking(int fd);

// True when `fd` is ready for `events` (poll's), or has failed or been closed, by the deadline.
bool wait_ready(int fd, short events, Deadline deadline);

// Writes everything; false when the reader is gone. Never raises SIGPIPE on a socket.
bool write_all(int fd, std::string_view bytes, Deadline deadline);

// Reads exactly `count` bytes; nothing less: an empty string when the writer closed or time is up.
std::string read_exactly(int fd, std::size_t count, Deadline deadline);

// A short file as a string; BadInput naming the path when it cannot be read or is over `most`
// bytes.
std::string read_file(const std::string& path, std::size_t most);

}  // namespace lockstep::base

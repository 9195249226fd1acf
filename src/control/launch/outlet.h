// The launcher's own standard output and error.
#pragma once

#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/fd.h"

namespace lockstep::control {

// What an outlet writes to: the descriptor given or, where possible, one of our own for the same pipe
// or terminal, which is non-blocking.
struct Destination {
  explicit Destination(int given);

  bool ready() const;

  bool waits;    // pipe, socket or terminal: may not be ready
  base::Fd own;  // may be none
  int fd;
};

// Bytes that wait to be written, first come first written. Room is given back now and then, not with every piece.
class ByteQueue {
 public:
  void add(std::string_view bytes) { bytes_.append(bytes); }
  std::string_view waiting() const { return std::string_view(bytes_).substr(taken_); }
  void take(std::size_t count);  // from the front

 private:
  std::string bytes_;
  std::size_t taken_ = 0;
};

// A queue of bytes in front of a descriptor that others may share.
//
// The descriptor's flags stay as they are: making a shell's terminal non-blocking would break the
// shell. So a pipe or terminal is opened once more, non-blocking, and written when poll(2) says that
// it is ready: a slow reader makes the queue grow, never the launcher wait. Where it cannot be
// opened, it is written through the descriptor given, in pieces that fit into a pipe.
//
// Threads:   where the io_context runs.
// Blocking:  only as long as a regular file takes to be written; on a terminal that cannot be opened
//            once more, as long as its reader takes.
// Failure:   bytes that cannot be written, for want of a reader or of room on a disk, are told once
//            through when_closed; error() says why, and whatever comes then is dropped and counted.
// Ownership: borrows the descriptor; the io_context must outlive it.
class Outlet {
 public:
  Outlet(boost::asio::io_context& context, int fd);

  void add(std::string_view bytes);
  void flush();

  // So much waits that producers should pause until when_drained.
  bool full() const;
  bool empty() const { return queue_.waiting().empty(); }
  std::size_t waiting() const { return queue_.waiting().size(); }
  bool closed() const { return error_ != 0; }
  int error() const { return error_; }  // errno of the write that failed; 0 while none has
  std::uint64_t written() const { return written_; }
  std::uint64_t dropped() const { return dropped_; }

  std::function<void()> when_drained;
  std::function<void()> when_closed;

 private:
  bool write_piece();
  void wait_until_ready();
  void close(int error);

  Destination to_;
  boost::asio::posix::stream_descriptor readiness_;
  boost::asio::steady_timer retry_;
  ByteQueue queue_;
  std::uint64_t written_ = 0;
  std::uint64_t dropped_ = 0;
  bool waiting_ = false;
  bool refused_ = false;  // it was ready, and took nothing
  bool was_full_ = false;
  int error_ = 0;
};

// Standard output and standard error; one and the same when both lead to the same place, so that
// a line of one never lands inside a line of the other.
struct Outlets {
  std::shared_ptr<Outlet> out;
  std::shared_ptr<Outlet> err;
};
Outlets open_outlets(boost::asio::io_context& context);

}  // namespace lockstep::control

// One of a worker's two outputs, on its way from the pipe to the launcher's own.
#pragma once

#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <memory>
#include <string>

#include "base/fd.h"
#include "control/launch/lines.h"
#include "control/launch/outlet.h"

namespace lockstep::control {

struct StreamTargets {
  std::shared_ptr<Outlet> outlet;
  std::string prefix;
  base::Fd log;                // the bytes as they come; may be none
  std::shared_ptr<Tail> tail;  // shared by the two streams of a worker
  std::size_t most_line_bytes = 0;
};

// Reads the pipe, passes whole lines on, and stops reading while the outlet is full, which in time
// stops the worker: memory stays bounded.
//
// Threads:   where the io_context runs.
// Blocking:  only as long as the log file takes to be written.
// Failure:   a log that cannot be written any more is dropped; log_failed() says so.
// Ownership: owns the pipe's end and the log; the io_context must outlive it.
class WorkerStream {
 public:
  WorkerStream(boost::asio::io_context& context, base::Fd pipe, StreamTargets targets);

  void start() { wait(); }

  // Goes on after the outlet was full.
  void resume();

  // No process holds the other end any more: what the pipe still has is all there will be.
  void expect_end();

  bool ended() const { return !pipe_.is_open(); }
  bool log_failed() const { return log_failed_; }

 private:
  void wait();
  void read_some();
  void take(std::string_view bytes);
  void end();

  boost::asio::posix::stream_descriptor pipe_;
  StreamTargets targets_;
  LineSplitter splitter_;
  LineSplitter::Sink sink_;
  bool waiting_ = false;
  bool expect_end_ = false;
  bool log_failed_ = false;
};

}  // namespace lockstep::control

// All that workers print, on its way to the launcher's outputs and the log files.
#pragma once

#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "control/launch/preparation.h"
#include "control/launch/worker_stream.h"

namespace lockstep::control {

// Standard output or error, from the write that failed on.
struct LostOutput {
  const char* name;
  int error;  // EPIPE when nobody reads it any more
  std::uint64_t bytes;
};

// Threads:   where the io_context runs.
// Blocking:  never, except for the disk under the log files.
// Failure:   when_closed, with the errno, when standard output or error cannot be written any more;
//            the workers' bytes are then read and dropped.
// Ownership: owns the pipes' read ends and the log files; the io_context must outlive it.
class Output {
 public:
  Output(boost::asio::io_context& context, int workers, KeeperPlan& plan,
         std::vector<LogFile> logs);

  std::function<void(int error)> when_closed;

  void start();

  // A line of the launcher's own, on standard error; on standard output if that is lost. It takes the place of a bar that a
  // worker has drawn on the terminal.
  void note(std::string_view line);

  // No worker is left: takes what the pipes still hold, then calls `then`. Gives up on a reader of
  // our outputs that takes nothing for `patience`.
  void drain(std::chrono::milliseconds patience, std::function<void()> then);

  // Waits, with the same patience, until the readers have taken everything, then calls `then`.
  void flush(std::chrono::milliseconds patience, std::function<void()> then);

  // Bytes that nobody has read.
  std::size_t waiting() const;

  // What could not be written.
  std::vector<LostOutput> lost() const;

  const std::deque<std::string>& last_lines(int rank) const;

  // The log files that could not be written to their end.
  std::vector<std::string> failed_logs() const;

 private:
  struct Wait {
    std::function<bool()> done;
    std::function<void()> then;
    std::chrono::milliseconds patience;
    std::uint64_t written = 0;
    std::chrono::steady_clock::time_point progress_at = std::chrono::steady_clock::now();
  };

  void resume_streams();
  void check(Wait wait);
  bool all_read() const;
  bool all_written() const;
  std::uint64_t written() const;

  boost::asio::io_context& context_;
  Outlets outlets_;
  std::string before_note_;
  std::vector<std::shared_ptr<Tail>> tails_;
  std::vector<std::unique_ptr<WorkerStream>> streams_;
  std::vector<std::string> log_paths_;
  boost::asio::steady_timer poll_;
};

// Whether to colour what goes to this descriptor: a terminal, and neither NO_COLOR nor TERM=dumb.
bool wants_colour(int fd);

}  // namespace lockstep::control

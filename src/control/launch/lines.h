// From a worker's bytes to lines that can stand beside other workers' lines.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep::control {

// Cuts a stream of bytes into lines.
//
//   '\n' and "\r\n"   end a line
//   '\r' alone        begins the line anew, as a progress bar does: what it replaces is shown at
//   most once
//                     a second, so that a bar neither floods the output nor stays invisible
//   a longer line     than the limit is passed on in pieces of the limit
//
// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   none.
// Ownership: holds at most the limit; lines given to the sink are valid during the call.
class LineSplitter {
 public:
  using Clock = std::chrono::steady_clock;
  using Sink = std::function<void(std::string_view line)>;  // without its end

  explicit LineSplitter(std::size_t most_bytes) : most_bytes_(most_bytes) {}

  void feed(std::string_view bytes, Clock::time_point now, const Sink& sink);

  // The stream has ended: passes on what had no end of line yet.
  void finish(const Sink& sink);

 private:
  void append(std::string_view text, const Sink& sink);
  void end_line(const Sink& sink);
  void begin_anew(Clock::time_point now, const Sink& sink);

  std::size_t most_bytes_;
  std::string line_;
  bool after_return_ = false;  // the last byte was '\r'
  bool after_cut_ = false;     // the line began in a piece that was passed on already
  Clock::time_point next_replaced_{};
};

// The longest line of one stream when there are this many: 1 MiB, less for hundreds of
// workers, so that all of them together hold at most 128 MiB.
std::size_t line_limit(int streams);

// "[ 3] " for worker 3 of 10 to 99, in a colour of its own on a terminal.
std::string line_prefix(int rank, int workers, bool colour);

// The last few lines of a worker, for the report of its failure.
class Tail {
 public:
  void add(std::string_view line);
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  std::deque<std::string> lines_;
};

}  // namespace lockstep::control

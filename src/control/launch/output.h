// What workers print, on its way to our terminal, and what the launcher says itself.
//
//   worker ── pipe ── stream ── LineSplitter ── outlet ── standard output, or standard error
//                       │            │
//                    log file      Tail: its last lines, for the report of a failure
//
// From bytes to lines: each worker has two pipes, one for its standard output and one for its standard error. The bytes
// of a pipe go into the log file as they are. Then they are cut into lines, and only whole lines go on, with "[3] " in
// front. So lines of two workers never mix, however their bytes arrive.
//
// If the reader stops reading (a pager, Ctrl-S, a connection that hangs): an outlet is a queue in front of a
// descriptor. It never waits for the reader, because the launcher must notice signals and the ends of workers. At 1 MiB
// the queue is full, and the streams stop reading. Then the pipes fill, and in the end the workers wait in their own
// write, as they would without a launcher. So memory stays bounded, and no line is lost.
//
// If the reader goes away, or the disk is full: the outlet keeps the errno, and drops and counts its queue and all that
// comes later. The streams go on reading, so that workers can end. JobState decides that the job ends.
//
// At the end no process of the job is left, so what the pipes hold is all there will be: drain() takes it. Then the
// launcher notes who failed first, with that worker's last lines (JobReport). flush() waits for the readers of all
// that, but not for one that takes nothing for a while. The bytes that nobody has read are counted and reported.
//
// output.cpp has the first three parts, report.cpp the last.
#pragma once

#include <sys/types.h>

#include <utility>  // Boost 1.74's Asio uses std::exchange and does not include this

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "control/launch/job_state.h"
#include "control/launch/keeper.h"
#include "control/launch/node_roster.h"
#include "control/launch/options.h"
#include "control/launch/preparation.h"

namespace lockstep::control {

// Cuts a stream of bytes into lines.
//
//   '\n' and "\r\n"   end a line
//   '\r' alone        starts the line again, as a progress bar does. What it replaces is shown at most once a second, so
//                     that a bar neither floods the output nor stays invisible
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
  void start_again(Clock::time_point now, const Sink& sink);

  std::size_t most_bytes_;
  std::string line_;
  bool after_return_ = false;  // the last byte was '\r'
  bool after_cut_ = false;     // the line began in a piece that was passed on already
  Clock::time_point next_replaced_{};
};

// The longest line of a stream if there are so many streams: 1 MiB, or less for hundreds of workers, so that all lines
// together take at most 128 MiB.
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

// What was lost of standard output or error, since a write failed.
struct LostOutput {
  const char* name;
  int error;  // EPIPE when nobody reads it any more
  std::uint64_t bytes;
};

// All that the workers and the launcher print.
//
// Threads:   where the io_context runs.
// Blocking:  only while a regular file is written, and on a terminal that cannot be opened a second time, while its
//            reader does not read.
// Failure:   when_closed, with the errno, when standard output or error cannot be written any more; the workers' bytes
//            are then read and dropped. A log that cannot be written is dropped; failed_logs() names it.
// Ownership: owns the pipes' read ends and the log files; the io_context must outlive it.
class Output {
 public:
  // `logs` has two files for each worker, or none at all.
  Output(boost::asio::io_context& context, KeeperPlan& plan, const LinePrefix& prefix,
         std::vector<LogFile> logs);
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output();

  std::function<void(int error)> when_closed;
  // Sees every line of a worker's standard output first. True: it is not shown.
  std::function<bool(int worker, std::string_view line)> takes_line;

  // Begins to read what workers print. Also called when a full outlet has room again.
  void resume_streams();

  // A line of the launcher's own, on standard error, or on standard output if that is lost. It replaces a progress bar
  // that a worker has drawn on the terminal.
  void note(std::string_view line);

  // This worker, counted on this host, has died, and another process may write to the same pipes: a line that it had begun
  // ends here.
  void end_lines(int worker);

  // No worker is left: takes what the pipes still hold, then calls `then`. Gives up on a reader of our outputs that
  // takes nothing for `patience`.
  void drain(std::chrono::milliseconds patience, std::function<void()> then);

  // Waits, with the same patience, until the readers have taken everything, then calls `then`.
  void flush(std::chrono::milliseconds patience, std::function<void()> then);

  std::size_t waiting() const;           // bytes that nobody has read
  std::vector<LostOutput> lost() const;  // what could not be written
  std::vector<std::string> failed_logs() const;
  const std::deque<std::string>& last_lines(int worker) const;  // counted on this host

 private:
  class Outlet;
  class Stream;
  struct Wait {
    std::function<bool()> done;
    std::function<void()> then;
    std::chrono::milliseconds patience;
    std::uint64_t written = 0;
    std::chrono::steady_clock::time_point progress_at = std::chrono::steady_clock::now();
  };

  void check(Wait wait);
  std::uint64_t written() const;

  boost::asio::io_context& context_;
  // The same outlet if both lead to the same file or terminal: a line of one must not land inside a line of the other.
  std::shared_ptr<Outlet> out_;
  std::shared_ptr<Outlet> err_;
  std::string before_note_;
  std::vector<Tail> tails_;  // one for each worker
  std::vector<std::unique_ptr<Stream>> streams_;
  boost::asio::steady_timer poll_;
};

// Why a job ended: collects facts of all hosts while it runs, and turns them into the verdict.
//
// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   none.
// Ownership: plain values.
class JobReport {
 public:
  JobReport(const HostMap& map, std::string program);

  void add(const KeeperEvent& event);
  void set_map(const HostMap& map);  // a host has joined
  void keeper_lost(int node, int wait_status);
  void host_lost(int node, const std::string& why);
  void overtime(int live) { overtime_ = live; }

  // Notes whether a worker of this host that another one lost is stopped by a signal now. Only the first look counts:
  // later the orders that end the job continue a stopped worker.
  void look_at(int rank);

  // A worker is expelled: others have waited for it for so long.
  void expel(double waited_s) { waited_s_ = waited_s; }
  double waited_s() const { return waited_s_; }

  // The worker is about to be started again.
  void restart(int rank) { not_started_[static_cast<std::size_t>(rank)] = 0; }

  // A fault on purpose has struck, by its number in the list; and those of the list that never did, as one line. Empty:
  // all have.
  void fault(int number) { struck_.insert(number); }
  std::string unstruck(const std::string& faults) const;

  // The errno with which the worker's exec failed, or 0. Then the end of its process says nothing.
  int not_started(int rank) const { return not_started_[static_cast<std::size_t>(rank)]; }

  NodeVerdict verdict(const JobState& state) const;

 private:
  void tell_failure(const JobState& state, NodeVerdict& verdict) const;
  std::string what_happened(const JobState& state) const;
  std::string who(int rank) const { return who(rank, pids_[static_cast<std::size_t>(rank)]); }
  std::string who(int rank, pid_t pid) const;
  bool seen_stopped(std::optional<int> rank) const;

  HostMap map_;
  std::string program_;
  double waited_s_ = 0;
  std::vector<pid_t> pids_;
  std::vector<int> not_started_;  // errno; 0: it was started
  int overtime_ = 0;
  std::string lost_;             // the first host or keeper that was lost, as a line
  std::map<int, bool> stopped_;  // by rank, for look_at()
  std::set<int> struck_;
};

// What a launcher says in the end: the verdict, with the last lines of the worker if it was one of its own, and what the
// user should know of this host.
//
// Threads, Blocking, Failure, Ownership: as JobReport.
class ClosingWords {
 public:
  ClosingWords(const RunOptions& options, const HostMap& map) : options_(options), map_(map) {}

  void swept(int processes) { swept_ = processes; }
  void not_ended(std::vector<pid_t> left) { left_ = std::move(left); }

  // Lines that are always shown: the first failure with the worker's last lines, lost logs …
  std::vector<std::string> failures(const NodeVerdict& verdict, const Output& output) const;

  // Lines that --quiet leaves out.
  std::vector<std::string> notes(const NodeVerdict& verdict) const;

  // What could not be written of the output. Always shown, and last, because only then are all lost bytes counted.
  static std::vector<std::string> lost_output(const NodeVerdict& verdict, const Output& output);

 private:
  std::vector<std::string> failure(const NodeVerdict& verdict, const Output& output) const;
  bool for_us_to_tell(const NodeVerdict& verdict) const;

  const RunOptions& options_;
  const HostMap& map_;
  int swept_ = 0;
  std::vector<pid_t> left_;
};

}  // namespace lockstep::control

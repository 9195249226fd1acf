#include "control/launch/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "control/launch/output.h"
#include "control/launch/program.h"

namespace lockstep::control {
namespace {

const char* plural(int count) {
  return count == 1 ? "" : "s";
}

}  // namespace

JobReport::JobReport(const RunOptions& options, std::string program)
    : workers_(options.workers),
      explained_codes_(options.explained_codes),
      leader_keeps_output_(options.leader_keeps_output),
      program_(std::move(program)),
      pids_(static_cast<std::size_t>(options.workers)),
      not_started_(static_cast<std::size_t>(options.workers)) {}

void JobReport::add(const KeeperEvent& event) {
  if (event.kind == KeeperEvent::Kind::kSwept) swept_ = event.value;
  if (event.rank < 0 || event.rank >= workers_) return;
  if (event.kind == KeeperEvent::Kind::kStarted)
    pids_[static_cast<std::size_t>(event.rank)] = event.pid;
  if (event.kind == KeeperEvent::Kind::kNotStarted)
    not_started_[static_cast<std::size_t>(event.rank)] = true;
}

std::vector<std::string> JobReport::failures(const JobState& state, const Output& output) const {
  std::vector<std::string> lines;
  switch (state.cause()) {
    case JobState::Cause::kFailure:
      lines = first_failure(*state.failure(), output);
      break;
    case JobState::Cause::kKeeperLost:
      lines.push_back(
          fmt::format("lockstep: the launcher's keeper process {}; everything was ended",
                      describe(worker_end(0, keeper_status_))));
      break;
    case JobState::Cause::kOutputClosed:  // see lost_output()
    case JobState::Cause::kNone:
    case JobState::Cause::kSignal:
      break;
  }
  for (const auto& path : output.failed_logs()) {
    lines.push_back(fmt::format(
        "lockstep: {} is incomplete: it could not be written; is the disk full?", path));
  }
  if (!left_.empty()) {
    lines.push_back(fmt::format("lockstep: could not end process{} {}; see `ps -fp {}`",
                                left_.size() == 1 ? "" : "es", fmt::join(left_, ", "),
                                fmt::join(left_, ",")));
  }
  return lines;
}

std::vector<std::string> JobReport::lost_output(const JobState& state, const Output& output) {
  const bool is_cause = state.cause() == JobState::Cause::kOutputClosed;
  const char* consequence = is_cause && state.cut_short() ? "; the workers were ended" : "";
  std::vector<std::string> lines;
  for (const auto& lost : output.lost()) {
    if (lost.error != EPIPE) {
      lines.push_back(fmt::format("lockstep: cannot write {}: {}; dropped {} bytes{}", lost.name,
                                  std::strerror(lost.error), lost.bytes, consequence));
    } else if (is_cause) {
      lines.push_back(fmt::format("lockstep: nobody reads the output any more{}", consequence));
    }
  }
  return lines;
}

const char* JobReport::last_words(int rank, bool none) const {
  if (!none) return "Its last lines:";
  return rank == 0 && leader_keeps_output_ ? "" : "It had printed nothing.";
}

std::vector<std::string> JobReport::first_failure(const WorkerEnd& failure,
                                                  const Output& output) const {
  if (failure.how == WorkerEnd::How::kNotStarted) {
    return {fmt::format("lockstep: rank {}: {}", failure.rank,
                        explain_exec_failure(program_, failure.value))};
  }
  const bool explained = failure.rank == 0 && failure.how == WorkerEnd::How::kExited &&
                         std::find(explained_codes_.begin(), explained_codes_.end(),
                                   failure.value) != explained_codes_.end();
  if (explained) return {};
  const auto& last = output.last_lines(failure.rank);
  const std::string how = describe(failure);
  std::vector<std::string> lines = {
      fmt::format("lockstep: rank {} (pid {}) {}. {}", failure.rank,
                  pids_[static_cast<std::size_t>(failure.rank)],
                  workers_ > 1 ? "failed first: it " + how + "; the others were ended" : how,
                  last_words(failure.rank, last.empty()))};
  for (const auto& line : last) lines.push_back("  | " + line);
  return lines;
}

std::vector<std::string> JobReport::notes(const JobState& state) const {
  std::vector<std::string> lines;
  if (state.cause() == JobState::Cause::kSignal && overtime_ > 0) {
    lines.push_back(fmt::format(
        "lockstep: killed {} worker{} that had not ended in time; --grace gives them longer",
        overtime_, plural(overtime_)));
  }
  if (state.cause() == JobState::Cause::kNone && swept_ > 0) {
    lines.push_back(fmt::format("lockstep: ended {} process{} that workers had left running",
                                swept_, swept_ == 1 ? "" : "es"));
  }
  return lines;
}

}  // namespace lockstep::control

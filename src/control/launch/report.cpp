#include "control/launch/output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <cstring>

#include "control/launch/process_table.h"
#include "control/launch/program.h"

namespace lockstep::control {
namespace {

const char* plural(int count) {
  return count == 1 ? "" : "s";
}

}  // namespace

JobReport::JobReport(const RunOptions& options, std::string program)
    : workers_(options.workers),
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
      lines = first_failure(state, output);
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

void JobReport::look_at(int rank) {
  if (stopped_.contains(rank)) return;
  stopped_[rank] = is_stopped(read_process_table(), pids_[static_cast<std::size_t>(rank)]);
}

bool JobReport::seen_stopped(std::optional<int> rank) const {
  const auto seen = stopped_.find(rank.value_or(-1));
  return seen != stopped_.end() && seen->second;
}

std::string JobReport::who(int rank) const {
  return fmt::format("rank {} (pid {})", rank, pids_[static_cast<std::size_t>(rank)]);
}

std::string JobReport::last_words(int rank, bool witness, bool none) const {
  if (none) return rank == 0 && leader_keeps_output_ ? "" : " It had printed nothing.";
  return witness ? fmt::format(" Last lines of rank {}:", rank) : " Its last lines:";
}

// A worker that lost another one, which did not fail by itself, has only seen what happened: the text names both.
std::string JobReport::what_happened(const JobState& state) const {
  const WorkerEnd& failure = state.failure()->cause;
  const std::string how = describe(failure);
  if (workers_ == 1) return fmt::format("{} {}.", who(failure.rank), how);
  const auto lost = state.failure()->lost;
  if (!lost)
    return fmt::format("{} failed first: it {}; the others were ended.", who(failure.rank), how);
  if (seen_stopped(lost)) {
    return fmt::format(
        "{} is stopped (by SIGSTOP, Ctrl-Z or a debugger): {} lost it and {}; all were ended.",
        who(*lost), who(failure.rank), how);
  }
  auto end = state.end_of(*lost);
  const bool by_us = end && end->how == WorkerEnd::How::kKilled &&
                     (end->value == SIGTERM || end->value == SIGKILL);
  if (by_us) end.reset();  // we ended it, after the failure
  return fmt::format("{} lost {}, which {}, and {}; the others were ended.", who(failure.rank),
                     who(*lost), end ? describe(*end) : "was still running", how);
}

std::vector<std::string> JobReport::first_failure(const JobState& state,
                                                  const Output& output) const {
  const WorkerEnd& failure = state.failure()->cause;
  if (failure.how == WorkerEnd::How::kNotStarted) {
    return {fmt::format("lockstep: rank {}: {}", failure.rank,
                        explain_exec_failure(program_, failure.value))};
  }
  if (state.explained(failure)) {
    const auto lost = state.failure()->lost;
    if (!seen_stopped(lost)) return {};
    return {fmt::format("lockstep: {} is stopped, by SIGSTOP, Ctrl-Z or a debugger", who(*lost))};
  }
  const auto& last = output.last_lines(failure.rank);
  std::vector<std::string> lines = {
      fmt::format("lockstep: {}{}", what_happened(state),
                  last_words(failure.rank, state.failure()->lost.has_value(), last.empty()))};
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

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <cstring>

#include "control/fault_schedule.h"
#include "control/launch/output.h"
#include "control/launch/process_table.h"
#include "control/launch/program.h"

namespace lockstep::control {
namespace {

const char* plural(int count) {
  return count == 1 ? "" : "s";
}

bool is(const NodeVerdict& verdict, JobState::Cause cause) {
  return verdict.cause == static_cast<std::uint8_t>(cause);
}

}  // namespace

JobReport::JobReport(const HostMap& map, std::string program)
    : map_(map),
      program_(std::move(program)),
      pids_(static_cast<std::size_t>(map.world())),
      not_started_(static_cast<std::size_t>(map.world())) {}

void JobReport::add(const KeeperEvent& event) {
  if (!map_.is_rank(event.rank)) return;
  if (event.kind == KeeperEvent::Kind::kStarted)
    pids_[static_cast<std::size_t>(event.rank)] = event.pid;
  if (event.kind == KeeperEvent::Kind::kNotStarted)
    not_started_[static_cast<std::size_t>(event.rank)] = event.value;
}

void JobReport::set_map(const HostMap& map) {
  map_ = map;
  pids_.resize(static_cast<std::size_t>(map.world()));
  not_started_.resize(static_cast<std::size_t>(map.world()));
}

void JobReport::keeper_lost(int node, int wait_status) {
  if (!lost_.empty()) return;
  const std::string where = map_.nodes() == 1 ? "" : " on " + map_.name_of(node);
  lost_ = fmt::format("the launcher's keeper process{} {}; everything was ended", where,
                      describe(worker_end(0, wait_status)));
}

void JobReport::host_lost(int node, const std::string& why) {
  if (lost_.empty())
    lost_ = fmt::format("lost {}: {}; all workers were ended.", map_.name_of(node), why);
}

void JobReport::look_at(int rank) {
  if (stopped_.contains(rank)) return;
  stopped_[rank] = is_stopped(read_process_table(), pids_[static_cast<std::size_t>(rank)]);
}

bool JobReport::seen_stopped(std::optional<int> rank) const {
  const auto seen = stopped_.find(rank.value_or(-1));
  return seen != stopped_.end() && seen->second;
}

std::string JobReport::unstruck(const std::string& faults) const {
  constexpr std::size_t kMostNamed = 8;
  const std::vector<Fault> all = parse_faults(faults).faults;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!struck_.contains(static_cast<int>(i))) names.push_back(to_string(all[i]));
  }
  if (names.empty()) return "";
  const std::size_t count = names.size();
  if (count > kMostNamed) {
    names.resize(kMostNamed);
    names.push_back(fmt::format("and {} more", count - kMostNamed));
  }
  return fmt::format(
      "{} of {} fault{} never struck: {}; no worker of that number passed that point in that step",
      count, all.size(), all.size() == 1 ? "" : "s", fmt::join(names, ", "));
}

std::string JobReport::who(int rank, pid_t pid) const {
  if (map_.nodes() == 1) return fmt::format("rank {} (pid {})", rank, pid);
  return fmt::format("rank {} on {} (pid {})", rank, map_.name_of(map_.node_of(rank)), pid);
}

NodeVerdict JobReport::verdict(const JobState& state) const {
  NodeVerdict verdict;
  verdict.code = state.exit_code();
  verdict.cause = static_cast<std::uint8_t>(state.cause());
  verdict.cut_short = state.cut_short();
  verdict.overtime = static_cast<std::uint32_t>(overtime_);
  switch (state.cause()) {
    case JobState::Cause::kFailure:
      tell_failure(state, verdict);
      break;
    case JobState::Cause::kKeeperLost:
    case JobState::Cause::kHostLost:
      verdict.what = lost_;
      break;
    case JobState::Cause::kOutputClosed:  // see lost_output()
    case JobState::Cause::kNone:
    case JobState::Cause::kSignal:
      break;
  }
  return verdict;
}

void JobReport::tell_failure(const JobState& state, NodeVerdict& verdict) const {
  const WorkerEnd& failure = state.failure()->cause;
  const auto lost = state.failure()->lost;
  if (failure.how == WorkerEnd::How::kNotStarted) {
    const std::string where =
        map_.nodes() == 1 ? "" : " on " + map_.name_of(map_.node_of(failure.rank));
    verdict.what = fmt::format("rank {}{}: {}", failure.rank, where,
                               explain_exec_failure(program_, failure.value));
  } else if (!state.explained(failure)) {
    verdict.what = what_happened(state);
    verdict.speaker = failure.rank;
    verdict.witness = lost.has_value();
  } else if (seen_stopped(lost)) {
    verdict.what = fmt::format("{} is stopped, by SIGSTOP, Ctrl-Z or a debugger", who(*lost));
  }
}

// A worker that lost another one, which did not fail by itself, has only seen what happened: the text names both.
std::string JobReport::what_happened(const JobState& state) const {
  const WorkerEnd& failure = state.failure()->cause;
  // A replacement may have another process by now.
  const std::string name = failure.pid != 0 ? who(failure.rank, failure.pid) : who(failure.rank);
  const std::string how =
      state.expelled(failure.rank)
          ? fmt::format("was ended, because others had waited {:g} s for it", waited_s_)
          : describe(failure);
  if (map_.world() == 1) return fmt::format("{} {}.", name, how);
  const auto lost = state.failure()->lost;
  if (!lost) return fmt::format("{} failed first: it {}; the others were ended.", name, how);
  if (seen_stopped(lost)) {
    return fmt::format(
        "{} is stopped (by SIGSTOP, Ctrl-Z or a debugger): {} lost it and {}; all were ended.",
        who(*lost), name, how);
  }
  auto end = state.end_of(*lost);
  const bool by_us = end && end->how == WorkerEnd::How::kKilled &&
                     (end->value == SIGTERM || end->value == SIGKILL);
  if (by_us) end.reset();  // we ended it, after the failure
  return fmt::format("{} lost {}, which {}, and {}; the others were ended.", name, who(*lost),
                     end ? describe(*end) : "was still running", how);
}

std::vector<std::string> ClosingWords::failures(const NodeVerdict& verdict,
                                                const Output& output) const {
  std::vector<std::string> lines;
  if (!verdict.what.empty() && for_us_to_tell(verdict)) lines = failure(verdict, output);
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

// If all hosts have one terminal, the one with the last lines tells the failure.
bool ClosingWords::for_us_to_tell(const NodeVerdict& verdict) const {
  if (!options_.nodes.lifeline) return true;
  return verdict.speaker >= 0 ? map_.here(verdict.speaker) : map_.node == 0;
}

std::vector<std::string> ClosingWords::failure(const NodeVerdict& verdict,
                                               const Output& output) const {
  std::vector<std::string> lines = {"lockstep: " + verdict.what};
  const int speaker = verdict.speaker;
  if (!map_.is_rank(speaker)) return lines;
  if (!map_.here(speaker)) {
    const auto where = map_.name_of(map_.node_of(speaker));
    lines[0] += fmt::format(" Its last lines are in the output of {}.", where);
    return lines;
  }
  const auto& last = output.last_lines(speaker - map_.first_rank());
  if (!last.empty()) {
    lines[0] +=
        verdict.witness ? fmt::format(" Last lines of rank {}:", speaker) : " Its last lines:";
  } else if (speaker != 0 || !options_.leader_keeps_output) {
    lines[0] += " It had printed nothing.";
  }
  for (const auto& line : last) lines.push_back("  | " + line);
  return lines;
}

std::vector<std::string> ClosingWords::lost_output(const NodeVerdict& verdict,
                                                   const Output& output) {
  const bool is_cause = is(verdict, JobState::Cause::kOutputClosed);
  const char* consequence = is_cause && verdict.cut_short ? "; the workers were ended" : "";
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

std::vector<std::string> ClosingWords::notes(const NodeVerdict& verdict) const {
  std::vector<std::string> lines;
  const auto overtime = static_cast<int>(verdict.overtime);
  if (is(verdict, JobState::Cause::kSignal) && overtime > 0 && for_us_to_tell(verdict)) {
    lines.push_back(fmt::format(
        "lockstep: killed {} worker{} that had not ended in time; --grace gives them longer",
        overtime, plural(overtime)));
  }
  if (is(verdict, JobState::Cause::kNone) && swept_ > 0) {
    lines.push_back(fmt::format("lockstep: ended {} process{} that workers had left running",
                                swept_, swept_ == 1 ? "" : "es"));
  }
  return lines;
}

}  // namespace lockstep::control

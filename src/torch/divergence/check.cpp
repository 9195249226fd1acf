#include "torch/divergence/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <map>

#include "base/check.h"
#include "base/hash.h"
#include "control/gather_text.h"

namespace lockstep::divergence {
namespace {

constexpr double kFault = -1;

// 52 bits, which a double holds exactly; never 0.
double as_number(std::uint64_t digest) {
  return static_cast<double>((digest >> 12) | 1);
}

std::string workers_text(const std::vector<int>& workers) {
  return fmt::format("worker{} {}", workers.size() == 1 ? "" : "s", fmt::join(workers, ", "));
}

// The first item in which workers differ.
std::optional<std::size_t> first_difference(const std::vector<std::vector<flat::Parity>>& seen) {
  for (std::size_t item = 0; item < seen.front().size(); ++item) {
    for (const auto& theirs : seen) {
      if (theirs[item] != seen.front()[item]) return item;
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<int> minority(const std::vector<flat::Parity>& by_worker) {
  std::map<flat::Parity, std::size_t> votes;
  for (const flat::Parity value : by_worker) ++votes[value];
  const auto most = std::max_element(
      votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (2 * most->second <= by_worker.size()) return {};
  std::vector<int> others;
  for (std::size_t worker = 0; worker < by_worker.size(); ++worker) {
    if (by_worker[worker] != most->first) others.push_back(static_cast<int>(worker));
  }
  return others;
}

double Check::digest(std::int64_t step) {
  last_ = {step, subject_.seen()};
  std::uint64_t digest = 0;
  for (const flat::Parity value : last_.values) digest = base::mix64(digest ^ value);
  if (!subject_.fault()) return subject_.has_copies() ? as_number(digest) : 0;
  if (!faulty_step_) faulty_step_ = step;
  return kFault;
}

void Check::check_at_rest(std::int64_t step) {
  subject_.check_at_rest();
  if (subject_.fault() && !faulty_step_) faulty_step_ = step;
  throw_any_fault(step);
}

void Check::throw_any_fault(std::int64_t step) {
  std::int64_t faults = subject_.fault() ? 1 : 0;
  comm_.all_reduce({&faults, 1, DType::kInt64}).wait();
  if (faults > 0) throw_fault(step);
}

std::optional<Check::Undecided> Check::judge(std::int64_t step,
                                             const std::vector<double>& digests) {
  if (std::find(digests.begin(), digests.end(), kFault) != digests.end()) throw_fault(step);
  if (std::adjacent_find(digests.begin(), digests.end(), std::not_equal_to<>()) == digests.end())
    return std::nullopt;
  Undecided found{step, {}, gather(last_)};
  const auto item = first_difference(found.seen);
  if (!item) {  // a digest was changed on its way
    throw Mismatch(fmt::format(
        "step {}: workers hold the same weights, but got different digests of them: a message was "
        "changed on its way",
        step));
  }
  std::vector<flat::Parity> there;
  for (const auto& theirs : found.seen) there.push_back(theirs[*item]);
  found.text = fmt::format("step {}: workers {}", step, subject_.item_name(*item));
  const auto wrong = minority(there);
  if (wrong.empty()) return found;
  throw Mismatch(fmt::format("{}: {} {} other bits than the rest. {}", found.text,
                             workers_text(wrong), wrong.size() == 1 ? "has" : "have",
                             "Go on from the last checkpoint, without that machine"),
                 wrong);
}

// Every worker throws the fault of the lowest rank that has one. A text is sent as "RANK step …".
void Check::throw_fault(std::int64_t step) {
  const auto fault = subject_.fault();
  const std::string mine =
      fault && faulty_step_ ? fmt::format("{} step {}: {}, with nobody writing to it. {}",
                                          fault->worker, *faulty_step_, fault->text, fault->remedy)
                            : "";
  for (const std::string& said : control::gather_text(comm_, mine)) {
    const auto space = said.find(' ');
    if (space == std::string::npos) continue;
    throw Mismatch(said.substr(space + 1), {std::atoi(said.c_str())});
  }
  throw Mismatch(
      fmt::format("step {}: a worker has found a changed bit and cannot say where", step));
}

std::vector<std::vector<flat::Parity>> Check::gather(const Record& mine) {
  const std::size_t count = mine.values.size();
  const auto workers = static_cast<std::size_t>(comm_.size());
  std::vector<flat::Parity> all(count * workers);
  std::copy(
      mine.values.begin(), mine.values.end(),
      all.begin() + static_cast<std::ptrdiff_t>(count * static_cast<std::size_t>(comm_.rank())));
  comm_.all_gather({all.data(), all.size(), DType::kInt64}).wait();
  std::vector<std::vector<flat::Parity>> by_worker(workers);
  for (std::size_t worker = 0; worker < workers; ++worker) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(worker * count);
    by_worker[worker].assign(first, first + static_cast<std::ptrdiff_t>(count));
  }
  return by_worker;
}

void Check::verdict(const Undecided& undecided) {
  throw_any_fault(undecided.step);
  LOCKSTEP_CHECK(last_.step == undecided.step, "the step has been run again");
  const auto again = gather(last_);
  if (first_difference(again)) {
    throw Mismatch(undecided.text +
                   ", and again in a rerun. Nobody can tell which of them is wrong; try other "
                   "machines");
  }
  std::vector<int> wrong;  // the rerun agrees on all workers, so it is right
  for (std::size_t worker = 0; worker < undecided.seen.size(); ++worker) {
    if (undecided.seen[worker] != again.front()) wrong.push_back(static_cast<int>(worker));
  }
  if (wrong.size() == undecided.seen.size()) {
    throw Mismatch(undecided.text +
                   ", and a rerun gives other bits than any of them had: it began with a damaged "
                   "checkpoint, or a hook changes what a step does");
  }
  throw Mismatch(fmt::format("{}. A rerun of the step gives the same on all of them, and {} had "
                             "other bits. Go on from the last checkpoint, without that machine",
                             undecided.text, workers_text(wrong)),
                 wrong);
}

}  // namespace lockstep::divergence

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

// 52 bits, which a double holds exactly; never 0. Those of the workers of a copy are combined by
// XOR, of all bits but the last.
double as_number(std::uint64_t digest) {
  return static_cast<double>((digest >> 12) | 1);
}
std::uint64_t bits_of(double number) {
  return static_cast<std::uint64_t>(number) >> 1;
}

// The same for any division of the items among workers: items of others are 0 and add nothing.
std::uint64_t digest_of(const std::vector<flat::Parity>& items) {
  std::uint64_t digest = 0;
  for (std::size_t item = 0; item < items.size(); ++item)
    if (items[item] != 0) digest ^= base::mix64(base::mix64(item) ^ items[item]);
  return digest;
}

std::size_t count_of(const std::vector<int>& copies) {
  return static_cast<std::size_t>(*std::max_element(copies.begin(), copies.end())) + 1;
}

std::string workers_text(const std::vector<int>& workers) {
  return fmt::format("worker{} {}", workers.size() == 1 ? "" : "s", fmt::join(workers, ", "));
}

// The first item in which copies differ.
std::optional<std::size_t> first_difference(const std::vector<std::vector<flat::Parity>>& seen) {
  for (std::size_t item = 0; item < seen.front().size(); ++item) {
    for (const auto& theirs : seen) {
      if (theirs[item] != seen.front()[item]) return item;
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<int> minority(const std::vector<flat::Parity>& by_copy) {
  std::map<flat::Parity, std::size_t> votes;
  for (const flat::Parity value : by_copy) ++votes[value];
  const auto most = std::max_element(
      votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (2 * most->second <= by_copy.size()) return {};
  std::vector<int> others;
  for (std::size_t copy = 0; copy < by_copy.size(); ++copy) {
    if (by_copy[copy] != most->first) others.push_back(static_cast<int>(copy));
  }
  return others;
}

double Check::digest(std::int64_t step) {
  last_ = {step, subject_.seen()};
  if (!subject_.fault()) return subject_.copies().empty() ? 0 : as_number(digest_of(last_.values));
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
  const std::vector<int> copies = subject_.copies();
  if (copies.empty()) return std::nullopt;
  std::vector<std::uint64_t> of_copies(count_of(copies));
  for (std::size_t worker = 0; worker < copies.size(); ++worker)
    of_copies[static_cast<std::size_t>(copies[worker])] ^= bits_of(digests[worker]);
  if (std::adjacent_find(of_copies.begin(), of_copies.end(), std::not_equal_to<>()) ==
      of_copies.end())
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
  const auto wrong = workers_of(minority(there));
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
      fault && faulty_step_ ? fmt::format("{} step {}: {}, and no update has written it. {}",
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
  const std::vector<int> copies = subject_.copies();
  std::vector<std::vector<flat::Parity>> by_copy(count_of(copies),
                                                 std::vector<flat::Parity>(count));
  for (std::size_t worker = 0; worker < workers; ++worker) {
    auto& copy = by_copy[static_cast<std::size_t>(copies[worker])];
    for (std::size_t item = 0; item < count; ++item) copy[item] ^= all[worker * count + item];
  }
  return by_copy;
}

std::vector<int> Check::workers_of(const std::vector<int>& copies) const {
  const std::vector<int> of_workers = subject_.copies();
  std::vector<int> workers;
  for (std::size_t worker = 0; worker < of_workers.size(); ++worker) {
    if (std::find(copies.begin(), copies.end(), of_workers[worker]) != copies.end())
      workers.push_back(static_cast<int>(worker));
  }
  return workers;
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
  std::vector<int> wrong;  // the rerun agrees on all copies, so it is right
  for (std::size_t copy = 0; copy < undecided.seen.size(); ++copy) {
    if (undecided.seen[copy] != again.front()) wrong.push_back(static_cast<int>(copy));
  }
  if (wrong.size() == undecided.seen.size()) {
    throw Mismatch(undecided.text +
                   ", and a rerun gives other bits than any of them had: it began with a damaged "
                   "checkpoint, or a hook changes what a step does");
  }
  throw Mismatch(fmt::format("{}. A rerun of the step gives the same on all of them, and {} had "
                             "other bits. Go on from the last checkpoint, without that machine",
                             undecided.text, workers_text(workers_of(wrong))),
                 workers_of(wrong));
}

}  // namespace lockstep::divergence

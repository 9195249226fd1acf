#include "control/turns.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <exception>
#include <utility>
#include <vector>

namespace lockstep::control {
namespace {

// What a worker says of a turn.
struct TurnNote {
  Turns::Batch batch;
  std::uint64_t rule;

  Record record() const { return {static_cast<std::uint64_t>(batch), rule}; }
  static TurnNote of(const Record& record) {
    return {static_cast<Turns::Batch>(record[0]), record[1]};
  }
};

template <typename Test>
std::vector<int> ranks_where(const std::vector<Record>& records, const Test& test) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    if (test(TurnNote::of(records[rank]))) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::vector<int> with_batch(const std::vector<Record>& records) {
  return ranks_where(records,
                     [](const TurnNote& note) { return note.batch == Turns::Batch::kOwn; });
}

std::string text_of(const std::vector<int>& ranks, const char* has, const char* have) {
  return ranks.size() == 1 ? fmt::format("rank {} {}", ranks.front(), has)
                           : fmt::format("ranks {} {}", fmt::join(ranks, ", "), have);
}

}  // namespace

bool Turns::begin(Announcements& announcements, Batch batch, const Rule& rule) {
  const bool first = !under_way();
  const std::uint64_t own_rule =
      (rule.divides_by_present ? 1U : 0U) + (rule.throws_if_one_ends ? 2U : 0U);
  said_ = announcements.say(TurnNote{batch, own_rule}.record(), "UnevenInputs");
  idle_ = batch != Batch::kOwn;
  divides_by_present_ = rule.divides_by_present;
  if (!first && !idle_ && !rule.throws_if_one_ends) return true;
  said_->wait();
  const std::vector<int> present = with_batch(said_->records());
  if (first && !present.empty()) check(announcements, own_rule);
  if (!present.empty() && rule.throws_if_one_ends && present.size() < said_->records().size()) {
    const auto ended = ranks_where(said_->records(),
                                   [](const TurnNote& note) { return note.batch != Batch::kOwn; });
    throw BadInput(
        fmt::format("{} no batch left, and {}: throw_on_early_termination ends the loop on all "
                    "workers",
                    text_of(ended, "has", "have"), text_of(present, "has one", "have one")),
        ended);
  }
  if (present.empty()) end();
  return !present.empty();
}

// A worker that fails does not say so: the others get its PeerLost.
void Turns::leave(Announcements& announcements) noexcept {
  const bool breaks = under_way() && std::uncaught_exceptions() == 0;
  end();
  if (!breaks) return;
  try {
    announcements.say({}, "leaving UnevenInputs");
  } catch (...) {  // the world has ended, and the next call says why
  }
}

// Whether all can begin: in the first turn, while every worker waits for it.
void Turns::check(Announcements& announcements, std::uint64_t own_rule) const {
  const auto& records = said_->records();
  const std::uint64_t leaders = TurnNote::of(records.front()).rule;
  const auto others =
      ranks_where(records, [&](const TurnNote& note) { return note.rule != leaders; });
  if (!others.empty()) {
    announcements.disagree(Mismatch(
        fmt::format("{} other options of UnevenInputs than rank 0: give all workers the same",
                    text_of(others, "has", "have")),
        others));
  }
  const bool throws = (own_rule & 2U) != 0;
  const auto bare =
      ranks_where(records, [](const TurnNote& note) { return note.batch == Batch::kNone; });
  if (bare.empty() || throws) return;
  throw BadInput(fmt::format("{} no batch at all, and so none to run in place of one: give "
                             "UnevenInputs an example, such as a batch of zeros",
                             text_of(bare, "has", "have")),
                 bare);
}

Presence Turns::presence(int workers) const {
  if (!said_) return {0, workers, true};
  said_->wait();
  const std::vector<int> present = with_batch(said_->records());
  if (present.empty()) return {0, workers, true};
  return {present.front(), static_cast<int>(present.size()), !idle_};
}

std::optional<int> Turns::divisor(int workers) const {
  if (!said_ || !divides_by_present_) return workers;
  return said_->complete() ? std::optional(presence(workers).count) : std::nullopt;
}

}  // namespace lockstep::control

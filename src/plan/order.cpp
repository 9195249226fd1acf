#include "plan/order.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

namespace lockstep::plan {
namespace {

constexpr std::string_view kFirstLine = "lockstep order 1";
constexpr std::string_view kJob = "job ";
constexpr std::size_t kDigits = 16;
constexpr std::int64_t kMostSteps = std::int64_t{1} << 40;
constexpr int kMostShards = 1 << 20;

class Reader {
 public:
  Reader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  Order read() {
    if (text_.empty())
      throw BadInput(fmt::format("{} is empty: give a file that --order wrote", file_));
    if (!next_line() || line_ != kFirstLine)
      throw BadInput(fmt::format(
          "{}: line 1 is not the head of an order: give a file that --order wrote", file_));
    Order order;
    if (!next_line() || !line_.starts_with(kJob)) wrong("says no job");
    order.job = line_.substr(kJob.size());
    const auto is_digit = [](char letter) {
      return std::string_view("0123456789abcdef").find(letter) != std::string_view::npos;
    };
    if (order.job.size() != kDigits || !std::all_of(order.job.begin(), order.job.end(), is_digit))
      wrong(fmt::format("says no job: {} digits of a digest", kDigits));
    if (!next_line()) wrong("says no shards");
    order.shards = static_cast<int>(numbers("shards", {kMostShards})[0]);
    if (order.shards < 1) wrong("says no shards");
    while (next_line()) {
      auto round = read_round(order.shards);
      order.is_cut = !round;
      if (!round) break;
      while (!order.rounds.empty() && order.rounds.back().steps.first >= round->steps.first)
        order.rounds.pop_back();
      if (!order.rounds.empty() && order.rounds.back().steps.end > round->steps.first)
        wrong("belongs to a round that begins in the middle of the one before");
      order.rounds.push_back(std::move(*round));
    }
    order.is_cut = order.is_cut || !text_.empty();
    return order;
  }

 private:
  // Only a line that has its newline.
  bool next_line() {
    const auto end = text_.find('\n');
    if (end == std::string_view::npos) return false;
    ++number_;
    line_ = text_.substr(0, end);
    text_.remove_prefix(end + 1);
    return true;
  }

  // Nothing: the text ends before the round does.
  std::optional<RoundOrder> read_round(int shards) {
    const auto head = numbers("round", {kMostSteps, kMostSteps, kMostSteps});
    RoundOrder round{{head[0], head[0] + head[1]}, {}};
    if (head[1] < 1) wrong("has a round of no steps");
    std::set<std::pair<std::int64_t, int>> tasks;
    for (std::int64_t number = 0; number < head[2]; ++number) {
      if (!next_line()) return std::nullopt;
      const auto values = numbers("", {round.steps.end - 1, shards - 1, number});
      const OrderedUpdate update{values[0], static_cast<int>(values[1]), values[2]};
      if (update.step < round.steps.first) wrong("has a step before its round");
      if (!tasks.emplace(update.step, update.shard).second)
        wrong("has a shard of a step that came before");
      round.updates.push_back(update);
    }
    return round;
  }

  // A word, or none, and numbers from 0 to these, with one space between.
  std::vector<std::int64_t> numbers(std::string_view word, std::vector<std::int64_t> most) {
    std::string_view rest = line_;
    if (!rest.starts_with(word)) wrong(fmt::format("does not begin with '{}'", word));
    rest.remove_prefix(word.size());
    bool first = word.empty();
    for (std::int64_t& number : most) {
      if (!std::exchange(first, false)) {
        if (!rest.starts_with(' ')) wrong("has too few numbers");
        rest.remove_prefix(1);
      }
      const std::int64_t limit = number;
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
      if (error != std::errc() || number < 0 || number > limit)
        wrong(fmt::format("has no number from 0 to {} where one belongs", limit));
      rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    }
    if (!rest.empty()) wrong("has too many numbers");
    return most;
  }

  [[noreturn]] void wrong(const std::string& what) const {
    throw BadInput(fmt::format("{}: line {} {}", file_, number_, what));
  }

  std::string_view text_;
  const std::string& file_;
  std::string_view line_;
  std::int64_t number_ = 0;
};

}  // namespace

std::vector<std::size_t> RoundOrder::pulls() const {
  std::vector<std::size_t> all(updates.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  std::stable_sort(all.begin(), all.end(), [&](std::size_t one, std::size_t other) {
    return updates[one].seen < updates[other].seen;
  });
  return all;
}

std::vector<std::size_t> RoundOrder::pulls_before() const {
  std::vector<std::size_t> all(updates.size());
  for (const OrderedUpdate& update : updates) ++all[static_cast<std::size_t>(update.seen)];
  std::partial_sum(all.begin(), all.end(), all.begin());
  return all;
}

const RoundOrder* Order::find(std::int64_t first) const {
  const auto found = std::find_if(rounds.begin(), rounds.end(), [&](const RoundOrder& round) {
    return round.steps.first == first;
  });
  return found == rounds.end() ? nullptr : &*found;
}

Order parse_order(std::string_view text, const std::string& file) {
  return Reader(text, file).read();
}

std::string order_head(const std::string& job, int shards) {
  return fmt::format("{}\n{}{}\nshards {}\n", kFirstLine, kJob, job, shards);
}

std::string order_text(const RoundOrder& round) {
  std::string text =
      fmt::format("round {} {} {}\n", round.steps.first, round.steps.size(), round.updates.size());
  for (const OrderedUpdate& update : round.updates)
    text += fmt::format("{} {} {}\n", update.step, update.shard, update.seen);
  return text;
}

double rate_if_stale(std::int64_t missed, int shards) {
  return static_cast<double>(shards) /
         static_cast<double>(std::max<std::int64_t>(missed + 1, shards));
}

}  // namespace lockstep::plan

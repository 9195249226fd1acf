// Orders of asynchronous rounds: what was read is written and read again as the same, and a replay of what fits ends.
#include <lockstep/errors.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fuzz.h"
#include "plan/clerk.h"
#include "plan/order.h"

using lockstep::fuzz::require;
using namespace lockstep::plan;

namespace {

constexpr std::int64_t kMostTasks = 1000;

// A round whose tasks have samples if they are in the order.
RoundTasks tasks_of(const RoundOrder& round, int shards) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(round.steps.size() * shards));
  for (const OrderedUpdate& update : round.updates)
    samples[static_cast<std::size_t>((update.step - round.steps.first) * shards + update.shard)] =
        1;
  return {round.steps, shards, {}, samples};
}

// Two workers, of which each answers as soon as it is told something.
void replay(const RoundOrder& round, int shards) {
  if (round.steps.size() > kMostTasks / shards) return;
  const RoundTasks tasks = tasks_of(round, shards);
  if (!tasks.misfit(round).empty()) return;
  Clerk clerk(tasks, 2, &round);
  clerk.ask(0);
  clerk.ask(1);
  bool ended = false;
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (const Clerk::Answer& answer : clerk.answers()) {
      if (answer.task >= 0) clerk.take(answer.worker, answer.task);
      goes_on = true;
    }
    for (const Clerk::LogEntry& entry : clerk.log()) {
      goes_on = true;
      ended = ended || entry.kind == Clerk::LogEntry::Kind::kEnd;
      if (entry.kind != Clerk::LogEntry::Kind::kGive) continue;
      clerk.done(entry.worker, entry.task, {1, 1});
      clerk.ask(entry.worker);
    }
  }
  require(ended, "a replay of an order that fits ends");
  require(clerk.order() == round, "and has that order");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string file = "a.order";
  try {
    const Order order = parse_order(lockstep::fuzz::as_text(data, size), file);
    std::string text = order_head(order.job, order.shards);
    for (const RoundOrder& round : order.rounds) {
      require(order.find(round.steps.first) == &round, "every round is found");
      require(round.pulls().size() == round.updates.size(), "every task takes weights");
      const auto before = round.pulls_before();
      for (std::size_t number = 0; number < before.size(); ++number)
        require(before[number] > number, "a task takes weights before its update");
      text += order_text(round);
      replay(round, order.shards);
    }
    require(parse_order(text, file).rounds == order.rounds, "it is read as it was written");
  } catch (const lockstep::BadInput& error) {
    const std::string said = error.what();
    require(said.find(file) != std::string::npos, "what is refused is named");
    require(said.find('\n') == std::string::npos, "in one line");
  }
  return 0;
}

// Orders of asynchronous rounds: what was read is written and read again as the same.
#include <lockstep/errors.h>

#include <string>

#include "fuzz.h"
#include "plan/order.h"

using lockstep::fuzz::require;
using namespace lockstep::plan;

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
    }
    require(parse_order(text, file).rounds == order.rounds, "it is read as it was written");
  } catch (const lockstep::BadInput& error) {
    const std::string said = error.what();
    require(said.find(file) != std::string::npos, "what is refused is named");
    require(said.find('\n') == std::string::npos, "in one line");
  }
  return 0;
}

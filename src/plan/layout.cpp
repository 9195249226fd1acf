#include "plan/layout.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>

#include "base/check.h"

namespace lockstep::plan {
namespace {

// Far more than any memory has, and so little that sums of sizes cannot overflow.
constexpr std::size_t kMostBytes = std::size_t{1} << 56;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kEntryAlignment - 1) / kEntryAlignment * kEntryAlignment;
}

}  // namespace

Layout::Layout(const std::vector<Parameter>& parameters) {
  entries_.reserve(parameters.size());
  for (std::size_t i = parameters.size(); i-- > 0;) append(parameters[i], i);
}

void Layout::append(const Parameter& parameter, std::size_t registered) {
  const std::size_t element = size_of(parameter.dtype);
  if (element == 0) {
    throw BadInput(
        fmt::format("parameter {} has a dtype that Lockstep does not know ({}): convert it to a "
                    "float or integer type of buffer.h",
                    parameter.name, static_cast<int>(parameter.dtype)));
  }
  if (parameter.count > kMostBytes / element || bytes_ + parameter.count * element > kMostBytes) {
    throw BadInput(
        fmt::format("parameter {} of {} elements makes the model larger than any memory: "
                    "check its shape",
                    parameter.name, parameter.count));
  }
  if (!by_name_.emplace(parameter.name, entries_.size()).second) {
    throw BadInput(fmt::format(
        "two parameters are called {}: register each under a name of its own", parameter.name));
  }
  entries_.push_back({.name = parameter.name,
                      .dtype = parameter.dtype,
                      .count = parameter.count,
                      .offset = bytes_,
                      .registered = registered,
                      .first_element = elements_,
                      .first_block = blocks_});
  bytes_ += aligned(parameter.count * element);
  elements_ += parameter.count;
  blocks_ += entries_.back().blocks();
}

std::size_t Layout::entry_of(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  if (found == by_name_.end()) {
    throw BadInput(
        fmt::format("no parameter is called {}: names are those the model registered, such as {}",
                    name, entries_.empty() ? "(it has none)" : entries_.back().name));
  }
  return found->second;
}

std::size_t Layout::entry_of_registered(std::size_t index) const {
  LOCKSTEP_CHECK(index < entries_.size(), "a registration index is below the number of parameters");
  return entries_.size() - 1 - index;
}

Stretch Layout::block(std::size_t number) const {
  LOCKSTEP_CHECK(number < blocks_, "a block number is below the number of blocks");
  // An empty entry has the same first block as the next entry. So the last entry that starts at
  // this block or before it is the one with elements.
  const auto after =
      std::partition_point(entries_.begin(), entries_.end(),
                           [&](const Entry& entry) { return entry.first_block <= number; });
  const Entry& entry = *(after - 1);
  const std::size_t first = (number - entry.first_block) * kBlockElements;
  return {.entry = static_cast<std::size_t>(after - 1 - entries_.begin()),
          .first = first,
          .count = std::min(kBlockElements, entry.count - first)};
}

}  // namespace lockstep::plan

#include "control/gather_text.h"

#include <algorithm>
#include <numeric>

namespace lockstep::control {

std::vector<std::string> gather_text(Comm& comm, const std::string& text) {
  const auto workers = static_cast<std::size_t>(comm.size());
  const auto rank = static_cast<std::size_t>(comm.rank());
  std::vector<std::int64_t> lengths(workers);
  lengths[rank] = static_cast<std::int64_t>(text.size());
  // The lengths first: every worker must know the sizes before the texts can travel.
  comm.all_gather({lengths.data(), workers, DType::kInt64}).wait();
  const std::vector<std::size_t> counts(lengths.begin(), lengths.end());
  std::vector<std::size_t> first(workers);
  std::exclusive_scan(counts.begin(), counts.end(), first.begin(), std::size_t{0});
  std::string all(first.back() + counts.back(), '\0');
  std::copy(text.begin(), text.end(), all.begin() + static_cast<std::ptrdiff_t>(first[rank]));
  comm.all_gather({all.data(), all.size(), DType::kUInt8}, counts).wait();
  std::vector<std::string> texts;
  texts.reserve(workers);
  for (std::size_t r = 0; r < workers; ++r) texts.push_back(all.substr(first[r], counts[r]));
  return texts;
}

}  // namespace lockstep::control

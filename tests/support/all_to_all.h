// One all-to-all for tests: what every worker passes, and what it must get.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/support/elements.h"

namespace lockstep::testing {

template <typename T>
struct AllToAll {
  // `counts` as Comm::all_to_all takes them.
  AllToAll(int workers, const std::vector<std::size_t>& counts) : data(workers), results(workers) {
    std::uint32_t slice = 0;
    for (auto& from : data) {
      for (auto& to : results) {
        const auto elements = rough_elements<T>(counts[slice], slice + 1);
        from.insert(from.end(), elements.begin(), elements.end());
        to.insert(to.end(), elements.begin(), elements.end());
        ++slice;
      }
    }
  }

  std::vector<std::vector<T>> data;  // by worker
  std::vector<std::vector<T>> results;
};

// Every pair of workers has another count, and a third of them 0.
inline std::vector<std::size_t> uneven_counts(int workers, std::size_t longest) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(workers * workers));
  for (std::size_t i = 0; i < counts.size(); ++i)
    counts[i] = i % 3 == 1 ? 0 : longest - longest * i / (counts.size() + 1);
  return counts;
}

}  // namespace lockstep::testing

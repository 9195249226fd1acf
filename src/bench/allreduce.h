// `lockstep bench allreduce`.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/contenders.h"
#include "bench/rounds.h"

namespace lockstep::bench {

int bench_allreduce(const std::vector<std::string>& arguments);

// What a system could reach: operands in the worker's own memory, or dirty in other cores' caches.
inline constexpr char kLimit[] = "limit";
inline constexpr char kLimitDirty[] = "limit-dirty";

// What --order compares.
inline constexpr char kInPlaceTree[] = "in-place-tree";
inline constexpr char kInPlaceRanks[] = "in-place-ranks";

// The engines, the other systems and the limit that these arguments ask for. Gloo's workers meet in
// `folder`.
Field allreduce_field(const AllreduceArguments& arguments, const std::string& folder);

// The results of one system.
struct AllreduceResult {
  std::string system;
  std::string settings;
  std::map<std::size_t, std::vector<double>> samples;  // microseconds, by bytes

  // Adds what the workers of one run printed. Throws std::exception for lines that it does not
  // understand, and if there are none. Some lines of the run may have been added then.
  void add(const std::vector<std::string>& lines);
};

struct AllreduceReport {
  int workers = 0;
  std::vector<AllreduceResult> results;  // of systems that never failed
};

std::string as_json(const AllreduceReport& report);
std::string as_table(const AllreduceReport& report);
std::string as_plot(const AllreduceReport& report);

}  // namespace lockstep::bench

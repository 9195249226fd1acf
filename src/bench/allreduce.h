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

// What --order compares.
inline constexpr char kInPlaceTree[] = "in-place-tree";
inline constexpr char kInPlaceRanks[] = "in-place-ranks";

// Engines, peers and the limit, for these arguments. `folder` is where Gloo's workers meet.
Field allreduce_field(const AllreduceArguments& arguments, const std::string& folder);

// The results of one system.
struct AllreduceResult {
  std::string system;
  std::string settings;
  std::map<std::size_t, std::vector<double>> samples;  // microseconds, by bytes

  // Adds what the workers of one run printed. std::exception for lines that cannot be understood, and where there are
  // none; some of the run may then have been added.
  void add(const std::vector<std::string>& lines);
};

struct AllreduceReport {
  int workers = 0;
  std::vector<AllreduceResult> results;  // of those that never failed
};

std::string as_json(const AllreduceReport& report);
std::string as_table(const AllreduceReport& report);
std::string as_plot(const AllreduceReport& report);

}  // namespace lockstep::bench

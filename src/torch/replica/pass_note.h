// What a worker says of a synchronised backward pass at its first gradient: which replica's it is, what its passes so far
// weigh, and a sample of the weights that it was computed with. All workers hear all of it before the averages are used.
#pragma once

#include <lockstep/data_parallel.h>
#include <lockstep/errors.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "control/announcements.h"

namespace lockstep::replica {

struct PassNote {
  std::uint64_t replica = 0;  // by the order in which replicas were made
  std::uint64_t pass = 0;     // synchronised ones of it, from 1
  std::array<double, 3>
      weights{};  // of all passes since the last one, how many had weights, and how many had none
  std::uint64_t sample = 0;  // a WeightSample; 0: none was taken

  control::Record record() const;
  static PassNote of(const control::Record& record);
};

// On which ranks a note is another than rank 0's, the same on every worker; nothing if on none. `model` names the replica.
std::optional<Mismatch> difference_of(const std::vector<PassNote>& notes, const std::string& model);

}  // namespace lockstep::replica

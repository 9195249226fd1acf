// Where everything of a model lies, and in what it is cut: the same on all workers of a generation.
#pragma once

#include <lockstep/data_parallel.h>

#include <optional>
#include <vector>

#include "plan/buckets.h"
#include "plan/layout.h"
#include "plan/slices.h"

namespace lockstep::replica {

struct ModelPlan {
  plan::Layout layout;
  plan::Pieces
      pieces;  // what updates take at a time: every worker's slice where they share memory, else of everything
  std::vector<plan::Bucket> buckets;  // what is reduced at a time
};

// How the workers of a world reach each other's gradients.
enum class Reach : bool {
  kMessages,
  kMemory,  // every worker reads all of them where they are
};

// BadInput for a type that no reduction can add.
plan::Layout layout_of(const std::vector<NamedTensor>& trained);

// Slices are for so many workers; in memory all gradients of one type are one bucket.
ModelPlan plan_model(plan::Layout layout, int slices, Reach reach,
                     const DataParallelOptions& options);

// The same entries in the types in which they are added up; nothing if all of them are.
std::optional<plan::Layout> layout_of_sums(const plan::Layout& layout);

}  // namespace lockstep::replica

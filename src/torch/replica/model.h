// The tensors of a model, sorted by what replication does with them; where everything of it lies, and in what it is cut:
// the same on all workers of a generation.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/data_parallel.h>

#include <optional>
#include <string>
#include <vector>

#include "plan/buckets.h"
#include "plan/layout.h"
#include "plan/slices.h"

namespace lockstep::replica {

struct Model {
  std::vector<NamedTensor> parameters;  // each tensor once, under the first of its names
  std::vector<NamedTensor> trained;     // those of them that want gradients
  std::vector<NamedTensor> buffers;

  std::vector<NamedTensor> everything() const;  // parameters, then buffers
};

// BadInput for repeated names, and for tensors on several devices. `trained` stays empty.
Model sort_all(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers);

// The same with what is trained; BadInput for a model without anything to train.
Model sort_tensors(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers);

// Mismatch if the workers' models or options differ, or the instructions that they compute with. Collective.
void agree_on_model(Comm& comm, const Model& model, const DataParallelOptions& options);

// Every worker's values become one rank's. Collective.
void copy_from(Comm& comm, int source, const std::vector<NamedTensor>& tensors);

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

// Where the model is. BadInput when this world's engine cannot reach it.
Device device_of(const Model& model, const Comm& comm);

// BadInput for a type that no reduction can add.
plan::Layout layout_of(const std::vector<NamedTensor>& trained);

// Slices are for so many workers; in memory all gradients of one type are one bucket.
ModelPlan plan_model(plan::Layout layout, int slices, Reach reach,
                     const DataParallelOptions& options);

// The same entries in the types in which they are added up; nothing if all of them are.
std::optional<plan::Layout> layout_of_sums(const plan::Layout& layout);

}  // namespace lockstep::replica

// The tensors of a model, sorted by what replication does with them. Then its plan: where each
// parameter is in flat memory, and how the whole is cut. Both are the same on all workers of a
// generation.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/data_parallel.h>

#include <optional>
#include <vector>

#include "plan/buckets.h"
#include "plan/layout.h"
#include "plan/slices.h"

namespace lockstep::replica {

struct Model {
  std::vector<NamedTensor> parameters;  // each tensor once, under the first of its names
  std::vector<NamedTensor> trained;     // those that require gradients, in registration order
  std::vector<NamedTensor> buffers;

  std::vector<NamedTensor> everything() const;  // parameters, then buffers
};

// Sorts without asking what is trained: `trained` stays empty. BadInput for repeated names, and for
// tensors on several devices.
Model sort_all(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers);

// The same, with `trained`. BadInput for a model that has nothing to train.
Model sort_tensors(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers);

// Mismatch if workers have different models or options, or compute with different CPU instructions.
// Collective.
void agree_on_model(Comm& comm, const Model& model, const DataParallelOptions& options);

// All workers get the values of rank `source`. Collective.
void copy_from(Comm& comm, int source, const std::vector<NamedTensor>& tensors);
// Those that take them get the values of rank `source`, once all of them have arrived everywhere: if
// the source is lost before that, every worker has the values of before. Mismatch if a digest says
// that something else has arrived (check_arrived). Collective.
void bring_from(Comm& comm, int source, const std::vector<NamedTensor>& tensors, bool takes);
// Mismatch if some worker has other bits than rank `source`. Contiguous, on the CPU. Collective.
void check_arrived(Comm& comm, int source, const std::vector<torch::Tensor>& arrived);

struct ModelPlan {
  plan::Layout layout;
  // If workers share parameters, of a slice for each worker of all hosts; else of one slice. On
  // several hosts each worker updates several of them, one after the other.
  plan::Pieces pieces;
  std::vector<plan::Bucket> buckets;
};

// How the workers of a world reach each other's gradients.
enum class Reach : bool {
  kMessages,
  kMemory,  // every worker reads all gradients in shared memory
};

// The device of the model. BadInput if the engine of this world cannot reach it.
Device device_of(const Model& model, const Comm& comm);

// BadInput for a type that no reduction can add.
plan::Layout layout_of(const std::vector<NamedTensor>& trained);

// `slices`: how many workers divide the updates. With Reach::kMemory all gradients of one type are
// one bucket, because nothing is sent while backward runs.
ModelPlan plan_model(plan::Layout layout, int slices, Reach reach,
                     const DataParallelOptions& options);

// The wide layout; nullopt if no entry is of a half type.
std::optional<plan::Layout> layout_of_sums(const plan::Layout& layout);

}  // namespace lockstep::replica

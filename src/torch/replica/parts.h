// The parts of a replica, on which passes, hooks and optimizers work.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/data_parallel.h>

#include <memory>

#include "torch/divergence/watch.h"
#include "torch/replica/banks.h"
#include "torch/replica/buffer_sync.h"
#include "torch/replica/model.h"
#include "torch/replica/parameters.h"
#include "torch/replica/reduction.h"

namespace lockstep::replica {

// Owned by Replicated. A struct of its own, so that its users need no handle with a method for each
// of them. Not copied and not moved, because the parts refer to each other.
struct Parts {
  // Collective; `source` as in bind().
  Parts(Comm its_comm, int source, Model its_model, const DataParallelOptions& its_options);
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  // Goes on with other workers, with the values of rank `source`. Makes again all that depends on
  // who the workers are. Collective.
  void bind(Comm comm, int source);

  DataParallelOptions options;
  Model model;
  ModelPlan plan;
  std::unique_ptr<Parameters> parameters;
  std::unique_ptr<Banks> banks;
  std::unique_ptr<BufferSync> buffers;
  divergence::FirstFault faults;
  std::unique_ptr<Reduction> reduction;
  int source = 0;  // the rank whose values all workers began with
  Comm comm;       // last, so destroyed first: it ends operations that still use the memory above

  const torch::Tensor& parameter(std::size_t entry) const {
    return model.trained[plan.layout.entries()[entry].registered].tensor;
  }
  Device device() const { return banks->front().memory().device(); }
  // From now on each worker has values of its own for all parameters. Collective.
  void keep_private();
  // Takes memory for gradients, and makes what works on it. Collective.
  void take_gradients();
  // Whether a synchronised pass gives all workers the same buffers when it ends.
  bool buffers_follow_backward() const {
    return options.buffers == BufferSource::kLeader || options.buffers == BufferSource::kMean;
  }
  bool may_be_absent() const { return options.missing_gradient != MissingGradient::kError; }
};

}  // namespace lockstep::replica

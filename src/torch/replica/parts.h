// What a replica is made of, and what its passes work on.
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

// Apart from Replicated, so that passes, hooks and optimizers work on the parts and not through a handle that has a method
// for each of them. It stays where it is: parts refer to each other.
struct Parts {
  // Collective, as bind().
  Parts(Comm its_comm, int source, Model its_model, const DataParallelOptions& its_options);
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  // Goes on with other workers: all that depends on who they are is made again, and values are those of rank `source`.
  void bind(Comm comm, int source);

  DataParallelOptions options;
  Model model;
  ModelPlan plan;
  std::unique_ptr<Parameters> parameters;
  std::unique_ptr<Banks> banks;
  std::unique_ptr<BufferSync> buffers;
  divergence::FirstFault faults;
  std::unique_ptr<Reduction> reduction;
  int source = 0;  // the rank whose values all have begun with
  Comm comm;       // last: it ends the operations that still use the memory above

  const torch::Tensor& parameter(std::size_t entry) const {
    return model.trained[plan.layout.entries()[entry].registered].tensor;
  }
  Device device() const { return banks->front().memory().device(); }
  void take_gradients();
  // One copy of the parameters per host from here on, where workers share memory. Collective.
  void keep_one_copy();
  bool may_be_absent() const { return options.missing_gradient == MissingGradient::kZero; }
};

}  // namespace lockstep::replica

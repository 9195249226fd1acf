// The parts of a replica, on which passes, hooks and optimizers work.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/data_parallel.h>

#include <memory>
#include <optional>

#include "torch/divergence/watch.h"
#include "torch/replica/banks.h"
#include "torch/replica/buffer_sync.h"
#include "torch/replica/encoding.h"
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

  // Goes on with other workers, with the values of rank `source`, or each worker with its own. Makes
  // again all that depends on who the workers are. Collective.
  enum class Values : bool { kOfSource, kOwn };
  void bind(Comm comm, int source, Values values);

  DataParallelOptions options;
  Model model;
  ModelPlan plan;
  std::unique_ptr<Parameters> parameters;
  std::unique_ptr<Banks> banks;
  std::unique_ptr<BufferSync> buffers;
  divergence::FirstFault faults;
  std::unique_ptr<Encoding> encoding;  // null without a codec
  std::unique_ptr<Reduction> reduction;
  int source = 0;  // the rank whose values all workers began with
  // These two last, so destroyed first: they end operations that still use the memory above.
  Comm comm;
  std::optional<Comm> neighbours;  // on several hosts, if each has one copy of the parameters

  const torch::Tensor& parameter(std::size_t entry) const {
    return model.trained[plan.layout.entries()[entry].registered].tensor;
  }
  Device device() const { return banks->front().memory().device(); }
  // All workers, or on several hosts those of this one: they divide an update among them, and share
  // parameters and state.
  Comm& host() { return neighbours ? *neighbours : comm; }
  Workers workers() { return {comm, host()}; }
  // The rank in host() of the worker whose values the others there begin with: of `source`, if it
  // is there.
  int source_on_host() const;
  // From now on each worker has values of its own for all parameters. Collective.
  void keep_private();
  // Take memory, and make what works on it. Collective.
  void take_memory();
  void take_gradients();
  // Whether a synchronised pass gives all workers the same buffers when it ends.
  bool buffers_follow_backward() const {
    return options.buffers == BufferSource::kLeader || options.buffers == BufferSource::kMean;
  }
  bool may_be_absent() const { return options.missing_gradient != MissingGradient::kError; }
};

// On several hosts whose workers share memory: the workers of this host; nothing for a GPU.
// (device_choice.cpp)
std::optional<Comm> neighbours_on(Device device, Comm& comm);

}  // namespace lockstep::replica

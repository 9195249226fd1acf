// The tensors of a model, sorted by what replication does with them.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/data_parallel.h>

#include <string>
#include <vector>

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

}  // namespace lockstep::replica

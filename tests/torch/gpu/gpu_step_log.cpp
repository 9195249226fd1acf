#include "tests/torch/gpu/gpu_step_log.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <fstream>
#include <vector>

#include "base/hash.h"
#include "tests/torch/loops.h"
#include "torch/replica/tensors.h"

namespace lockstep::testing {
namespace {

// After one step. The tensors are copies on the GPU: the host does not wait for them, because a log that waits after every
// step would hide what only a late GPU shows.
struct AfterStep {
  loops::Outcome outcome;
  std::vector<NamedTensor> tensors;
};

std::vector<NamedTensor> copies_of(const torch::nn::Module& module) {
  std::vector<NamedTensor> copies;
  for (const auto& all : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : all) copies.push_back({item.key(), item.value().detach().clone()});
  }
  return copies;
}

std::string sha256_of(const torch::Tensor& tensor) {
  const torch::Tensor host = replica::host_contiguous(tensor);
  return base::to_hex(base::sha256(
      {static_cast<const char*>(host.data_ptr()), static_cast<std::size_t>(host.nbytes())}));
}

}  // namespace

void log_steps(World& world, const std::string& model, const std::string& path) {
  loops::Job job(world, loops::job_options());
  loops::One one(world, model);
  Step step(job, "train", {&one.optimizer}, one.loss());
  std::vector<AfterStep> steps;
  for (const GlobalBatch& batch : job.batches(loops::data_of(model), {.steps = loops::kSteps})) {
    auto outcome = step(batch);
    steps.push_back({std::move(outcome), copies_of(*one.net)});
  }
  std::ofstream file(path);
  for (const auto& [outcome, tensors] : steps) {
    file << fmt::format("step {} loss {:a}\n", outcome.step, outcome.loss());
    for (const auto& [name, tensor] : tensors)
      file << fmt::format("step {} {} {}\n", outcome.step, name, sha256_of(tensor));
  }
  file.close();
  if (!file) throw BadInput("cannot write to " + path);
}

}  // namespace lockstep::testing

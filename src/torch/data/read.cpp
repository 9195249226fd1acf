#include "torch/data/read.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include "plan/seed.h"
#include "torch/data/draws.h"

namespace lockstep {

at::Generator Sample::generator() const {
  return at::detail::createCPUGenerator(seed);
}

std::vector<Sample> samples_of(std::span<const std::int64_t> indices, std::int64_t epoch,
                               std::uint64_t job_seed) {
  std::vector<Sample> samples;
  samples.reserve(indices.size());
  for (const std::int64_t index : indices)
    samples.push_back({index, epoch, plan::sample_seed(job_seed, epoch, index)});
  return samples;
}

namespace data {
namespace {

std::string described(const torch::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ", "));
}

void check_alike(const std::vector<torch::Tensor>& tensors, const char* what,
                 std::span<const Sample> samples) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const torch::Tensor& first = tensors.front();
    if (!tensors[i].defined())
      throw BadInput(fmt::format("sample {} has no {}", samples[i].index, what));
    if (tensors[i].sizes() == first.sizes() && tensors[i].dtype() == first.dtype()) continue;
    throw BadInput(fmt::format(
        "samples {} and {} cannot be in one batch: their {} is {} and {}; crop or pad them in the "
        "data set",
        samples.front().index, samples[i].index, what, described(first), described(tensors[i])));
  }
}

}  // namespace

void refuse_unknown_size() {
  throw BadInput(
      "the data set does not say its size: every worker must know how many samples there are");
}

Batch stacked(const std::vector<torch::Tensor>& data, const std::vector<torch::Tensor>& targets,
              std::span<const Sample> samples) {
  if (data.size() != samples.size()) {
    throw BadInput(fmt::format("the data set gave {} examples where {} were asked for", data.size(),
                               samples.size()));
  }
  check_alike(data, "data", samples);
  check_alike(targets, "target", samples);
  return {torch::stack(data), targets.empty() ? torch::Tensor() : torch::stack(targets),
          static_cast<std::int64_t>(samples.size())};
}

Batch read(const Dataset& dataset, std::span<const Sample> samples) {
  if (samples.empty()) return {};
  const DrawScope own(samples.front().seed);
  Batch batch = dataset.batch(samples);
  if (batch.samples == static_cast<std::int64_t>(samples.size())) return batch;
  throw BadInput(
      fmt::format("the data set gave a batch that says it has {} samples where {} were asked for: "
                  "return them all, and set Batch::samples",
                  batch.samples, samples.size()));
}

}  // namespace data
}  // namespace lockstep

#include "torch/replica/model_plan.h"

#include <algorithm>
#include <utility>

#include "flat/chunks.h"
#include "flat/half.h"
#include "torch/replica/tensors.h"

namespace lockstep::replica {

plan::Layout layout_of(const std::vector<NamedTensor>& trained) {
  std::vector<plan::Parameter> parameters;
  parameters.reserve(trained.size());
  for (const auto& [name, tensor] : trained) {
    parameters.push_back(
        {name, reducible_dtype(tensor, name), static_cast<std::size_t>(tensor.numel())});
  }
  return plan::Layout(parameters);
}

ModelPlan plan_model(plan::Layout layout, int slices, Reach reach,
                     const DataParallelOptions& options) {
  const plan::BucketOptions limits =
      reach == Reach::kMemory
          ? plan::BucketOptions{SIZE_MAX, SIZE_MAX}
          : plan::BucketOptions{std::min(options.first_bucket_bytes, options.bucket_bytes),
                                options.bucket_bytes};
  ModelPlan plan{std::move(layout), {}, {}};
  plan.pieces = plan::plan_pieces(plan.layout, slices);
  plan.buckets = plan::plan_buckets(plan.layout, limits);
  return plan;
}

std::optional<plan::Layout> layout_of_sums(const plan::Layout& layout) {
  const bool has_halves = std::any_of(layout.entries().begin(), layout.entries().end(),
                                      [](const auto& entry) { return flat::is_half(entry.dtype); });
  return has_halves ? std::optional(flat::wide_layout(layout)) : std::nullopt;
}

}  // namespace lockstep::replica

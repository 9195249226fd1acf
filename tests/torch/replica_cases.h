// Two layers on batches by rank, and what plain LibTorch makes of them.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "tests/torch/nets.h"

namespace lockstep::testing::replicas {

inline constexpr std::uint64_t kSeed = 7;

inline torch::Tensor loss_of(TwoLayersImpl& net, const torch::Tensor& x) {
  return net.forward(x).pow(2).mean();
}

inline torch::Tensor batch_of(int rank, std::int64_t rows = 6) {
  return samples(100 + static_cast<std::uint64_t>(rank), {rows, 8});
}

inline std::vector<torch::Tensor> gradients(const torch::nn::Module& module) {
  std::vector<torch::Tensor> all;
  for (const auto& parameter : module.parameters()) all.push_back(parameter.grad().clone());
  return all;
}

// The mean over workers of the gradients, by plain LibTorch.
inline std::vector<torch::Tensor> plain_mean(int workers) {
  auto net = seeded<TwoLayers>(kSeed);
  torch::Tensor sum = torch::zeros({});
  for (int rank = 0; rank < workers; ++rank) sum = sum + loss_of(*net, batch_of(rank));
  (sum / workers).backward();
  return gradients(*net);
}

inline void expect_close(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_LT(largest_difference(a[i], b[i]), 1e-7) << "parameter " << i;
}

}  // namespace lockstep::testing::replicas

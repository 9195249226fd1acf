// A codec of a program's own, and the loop of train.cpp with it: half a byte for each element of a gradient.
//
//   ./own_codec                         alone
//   lockstep run -n 4 -- ./own_codec    on four workers, with the same bits
#include <lockstep/lockstep.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "net.h"

// Multiples, from -7 to 7, of the largest magnitude / 7. What they lose comes with the next gradient.
class Int4 : public lockstep::Codec {
 public:
  std::string name() const override { return "int4"; }
  bool has_error_feedback() const override { return true; }
  std::size_t bytes(std::size_t elements) const override { return 4 + (elements + 1) / 2; }

  void encode(std::span<const float> block, std::byte* bytes) const override {
    float unit = 0;
    for (float x : block) unit = std::isnan(x) ? x : std::max(unit, std::abs(x) / 7);
    if (std::fpclassify(unit) == FP_SUBNORMAL) unit = 0;
    std::memcpy(bytes, &unit, 4);
    std::fill_n(bytes + 4, (block.size() + 1) / 2, std::byte{0});
    const bool counts = std::isnormal(unit);
    for (std::size_t i = 0; i < block.size(); ++i) {
      const int multiple = counts ? static_cast<int>(std::nearbyint(block[i] / unit)) : 1;
      bytes[4 + i / 2] |= static_cast<std::byte>((multiple + 8) << (i % 2 * 4));
    }
  }

  void decode(const std::byte* bytes, std::span<float> block) const override {
    float unit = 0;
    std::memcpy(&unit, bytes, 4);
    for (std::size_t i = 0; i < block.size(); ++i) {
      const int code = std::to_integer<int>(bytes[4 + i / 2]) >> (i % 2 * 4) & 15;
      block[i] = static_cast<float>(code - 8) * unit;
    }
  }
};

int main() {
  torch::manual_seed(0);
  auto world = lockstep::join();
  lockstep::Job job(world, {.global_batch = 256, .shards = 8, .seed = 7});
  auto model = lockstep::data_parallel(Net(), world, {.codec = std::make_shared<Int4>()});
  lockstep::optim::AdamW optimizer(model, {.lr = 1e-3});
  lockstep::Step step(job, "train", {&optimizer}, [&](const lockstep::Shard& shard) {
    return torch::nll_loss(model->forward(shard.batch.data), shard.batch.target);
  });
  for (const auto& batch : job.batches(Pictures(), {.epochs = 5})) {
    const auto outcome = step(batch);
    if (!batch.ends_epoch()) continue;
    const double loss = outcome.loss();
    if (world.leader()) std::printf("epoch %d: loss %.4f\n", static_cast<int>(batch.epoch()), loss);
  }
  if (!world.leader()) return 0;
  std::printf("sha256 %s\n", job.weights_sha256().c_str());
  lockstep::save(model, "net.safetensors");
}

#include "app/train/shard_probe.h"

#include <ATen/CPUGeneratorImpl.h>
#include <lockstep/arena.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

#include "base/memory_use.h"

namespace lockstep::app {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLongestMs = 2000;
constexpr int kPasses = 2;  // after one to warm up

// Gives LibTorch's generator back as it was.
class KeptGenerator {
 public:
  KeptGenerator()
      : generator_(at::detail::getDefaultCPUGenerator()), state_(generator_.get_state()) {}
  ~KeptGenerator() { generator_.set_state(state_); }
  KeptGenerator(const KeptGenerator&) = delete;
  KeptGenerator& operator=(const KeptGenerator&) = delete;

 private:
  at::Generator generator_;
  torch::Tensor state_;
};

double largest(World& world, double mine) {
  world.comm().all_reduce({&mine, 1, DType::kFloat64}, {ReduceOp::kMax}).wait();
  return mine;
}

double pass_ms(models::Net& net, const Batch& batch) {
  net.zero_grad(true);
  const auto began = Clock::now();
  models::loss(net, batch).backward();
  return std::chrono::duration<double, std::milli>(Clock::now() - began).count();
}

// The fastest of some passes, and of all workers the slowest.
double measured_ms(World& world, models::Net& net, const Dataset& data, std::int64_t samples) {
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < samples; ++i) indices.push_back(i % data.size());
  const Batch batch = data.batch(samples_of(indices));
  pass_ms(net, batch);
  world.comm().barrier().wait();
  double fastest = std::numeric_limits<double>::infinity();
  for (int pass = 0; pass < kPasses; ++pass) fastest = std::min(fastest, pass_ms(net, batch));
  return largest(world, fastest);
}

// A pass needs at most as much memory as the whole process has after a smaller one, times how much larger it is.
bool has_room(World& world, const ShardSizes& now, const ShardSizes& fewest) {
  const double larger = static_cast<double>(fewest.samples) / static_cast<double>(now.samples);
  const double needed = static_cast<double>(base::proportional_set_bytes()) * larger * world.size();
  return largest(world, needed - static_cast<double>(available_memory_bytes())) < 0;
}

std::optional<ShardCost> measured(World& world, const ShardSizes& now, const ShardSizes& fewest,
                                  const Dataset& data, models::Net& net) {
  const double now_ms = now.hosted * measured_ms(world, net, data, now.samples);
  if (now_ms > kLongestMs || !has_room(world, now, fewest)) return std::nullopt;
  const double fewest_ms = fewest.hosted * measured_ms(world, net, data, fewest.samples);
  return ShardCost{now, fewest, now_ms, fewest_ms};
}

}  // namespace

std::optional<ShardCost> measure_shards(World& world, const ShardSizes& now,
                                        const ShardSizes& fewest, const Dataset& data,
                                        const std::function<std::shared_ptr<models::Net>()>& make) {
  const KeptGenerator kept;
  const auto cost = measured(world, now, fewest, data, *make());
  ::malloc_trim(0);  // so that the job's memory is its own
  return cost;
}

}  // namespace lockstep::app

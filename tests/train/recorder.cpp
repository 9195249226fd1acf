// A program whose weights count how often each sample was used, for faults_record_test.cpp.
//
//   recorder step FOLDER STEPS      a loop of its own; FOLDER/samples gets the samples of every shard of every step
//   recorder trainer FOLDER STEPS   a Trainer; FOLDER/hooks gets a line for each call of on_step: PID STEP LEADER LATER AGAIN
//
// The model has one weight for each sample. The loss is the mean of the weights of its samples, and the rate is the global
// batch: each use of a sample takes exactly 1 from its weight. The leader prints the smallest and the largest.
#include <fcntl.h>
#include <lockstep/job.h>
#include <lockstep/optim.h>
#include <lockstep/step.h>
#include <lockstep/trainer.h>
#include <lockstep/world.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/train/recorder.h"

namespace {

using namespace lockstep;
using namespace lockstep::testing;

class Numbers : public Dataset {
 public:
  std::int64_t size() const override { return kSamples; }
  Batch batch(std::span<const Sample> samples) const override {
    const auto count = static_cast<std::int64_t>(samples.size());
    torch::Tensor numbers = torch::empty({count}, torch::kInt64);
    for (std::int64_t i = 0; i < count; ++i)
      numbers[i] = samples[static_cast<std::size_t>(i)].index;
    return {numbers, numbers, count};
  }
};

struct CountImpl : torch::nn::Module {
  CountImpl() : weight(register_parameter("weight", torch::zeros({kSamples}))) {}
  torch::Tensor forward(const torch::Tensor& numbers) { return weight.index_select(0, numbers); }
  torch::Tensor weight;
};
TORCH_MODULE(Count);

// Long enough that a replacement starts within some steps. With fewer workers a step takes longer.
torch::Tensor slow_mean(const torch::Tensor& of) {
  std::this_thread::sleep_for(std::chrono::milliseconds(12));
  return of.mean();
}

// The samples that the shards of each step had. A shard that is run again must have the same.
using Entry = std::atomic<std::int32_t>;
Entry* map_record(const std::string& folder, std::int64_t steps) {
  const std::size_t bytes = static_cast<std::size_t>(steps * kBatch) * sizeof(Entry);
  const int file = ::open((folder + "/samples").c_str(), O_RDWR | O_CREAT, 0600);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) std::abort();
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) std::abort();
  return static_cast<Entry*>(memory);
}

void note(Entry* record, const Shard& shard) {
  constexpr std::int64_t kOfShard = kBatch / kShards;
  for (std::int64_t i = 0; i < kOfShard; ++i) {
    Entry& entry = record[shard.step * kBatch + shard.index * kOfShard + i];
    const auto number = static_cast<std::int32_t>(shard.batch.data[i].item<std::int64_t>());
    const std::int32_t before = entry.exchange(number + 1);  // 0: none yet
    if (before != 0 && before != number + 1) entry.store(-1);
  }
}

void run_step(World& world, const std::string& folder, std::int64_t steps) {
  Job job(world, {.global_batch = kBatch,
                  .shards = kShards,
                  .seed = 7,
                  .checkpoint = folder + "/run",
                  .checkpoint_every_steps = 64});
  Count net;
  auto model = data_parallel(net, world);
  optim::SGD optimizer(model, {.lr = kBatch});
  Entry* const record = map_record(folder, steps);
  Step step(job, "count", {&optimizer},
            [&](const Shard& shard) {
              note(record, shard);
              return slow_mean(net->forward(shard.batch.data));
            },
            {.before_update = [](std::int64_t) {}});
  for (const auto& batch : job.batches(std::make_shared<Numbers>(), {.steps = steps})) step(batch);
  if (world.leader())
    std::printf("uses %g %g\n", net->weight.min().item<float>(), net->weight.max().item<float>());
}

void run_trainer(World& world, const std::string& folder, std::int64_t steps) {
  Count net;
  auto model = data_parallel(net, world);
  const int log = ::open((folder + "/hooks").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  TrainerParts parts{
      .model = model,
      .module = net.ptr(),
      .optimizer = std::make_shared<optim::SGD>(model, optim::SGDOptions{.lr = kBatch}),
      .train = std::make_shared<Numbers>(),
      .loss = [net](const Batch& batch) mutable { return slow_mean(net->forward(batch.data)); }};
  TrainerOptions options;
  options.steps = steps;
  options.global_batch = kBatch;
  options.shards = kShards;
  options.checkpoint_directory = folder + "/run";
  options.checkpoint_every_steps = 64;
  TrainerHooks hooks;
  hooks.on_step = [&](const StepRecord& record) {
    const std::string line = std::to_string(::getpid()) + " " + std::to_string(record.step) + " " +
                             (world.leader() ? "1" : "0") + " " +
                             (world.joined_later() ? "1" : "0") + " " + (record.again ? "1" : "0") +
                             "\n";
    if (::write(log, line.data(), line.size()) < 0) std::abort();
  };
  Trainer(world, parts, options, hooks).run();
  if (world.leader())
    std::printf("uses %g %g\n", net->weight.min().item<float>(), net->weight.max().item<float>());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  World world = join();
  const std::string mode = argv[1];
  (mode == "step" ? run_step : run_trainer)(world, argv[2], std::atoll(argv[3]));
  std::fflush(stdout);
  std::_Exit(0);
}

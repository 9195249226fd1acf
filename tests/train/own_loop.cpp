// A job in a program's own loop, which knows nothing of signals:  own_loop DIRECTORY STEPS [rich|two|…]
//
// rich: it asks for the loss of every step, has a schedule, and keeps an average of the weights.
// two:  two loops, one after the other, with half of the steps each.
// broken: two loops over all steps. The first is left by break after half of them; the second has another rate.
// late: its leader has something to do behind the loop, and the others wait for a while.
// wrong: it throws BadInput in step 10, and catches nothing.
// backups: steps that wait for two of four shards, with a metric.
#include <lockstep/lockstep.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

namespace {

class Numbers : public torch::data::datasets::Dataset<Numbers> {
 public:
  torch::data::Example<> get(std::size_t index) override {
    const auto value = static_cast<float>(index % 16) / 16;
    return {torch::full({16}, value), torch::full({1}, value * value)};
  }
  decltype(std::declval<torch::data::datasets::MNIST>().size()) size() const override {
    return 4096;
  }
};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view kind = argc > 3 ? argv[3] : "";
  const bool rich = kind == "rich";
  const long long steps = std::atoll(argv[2]);
  torch::manual_seed(0);
  auto world = lockstep::join();
  const bool backups = kind == "backups";
  lockstep::Job job(world, {.global_batch = 16,
                            .shards = 4,
                            .seed = 7,
                            .local_steps = lockstep::LocalSteps::with_backups(backups ? 2 : 0, 10),
                            .checkpoint = argv[1]});
  torch::nn::Linear net(16, 1);
  auto model = lockstep::data_parallel(net, world);
  lockstep::optim::SGD optimizer(model, {.lr = 0.01});
  if (rich) optimizer.set_ema(0.9);
  lockstep::StepOptions options;
  if (rich) options.learning_rate = [](std::int64_t at) { return 0.01 / (1 + 1e-4 * double(at)); };
  lockstep::Step step(
      job, "train", {&optimizer},
      [&](const lockstep::Shard& shard) {
        if (backups) shard.report("largest", shard.batch.target.max().item<double>(), 1);
        return torch::mse_loss(net->forward(shard.batch.data), shard.batch.target);
      },
      options);
  if (kind == "two") {
    for (const auto& batch : job.batches(Numbers(), {.steps = steps / 2})) step(batch);
  }
  if (kind == "broken") {
    for (const auto& batch : job.batches(Numbers(), {.steps = steps})) {
      step(batch);
      if (batch.step() + 1 == steps / 2) break;
    }
    optimizer.set_lr(0.02);
  }
  for (const auto& batch : job.batches(Numbers(), {.steps = steps})) {
    if (kind == "wrong" && batch.step() == 10) throw lockstep::BadInput("it is wrong");
    const lockstep::Outcome outcome = step(batch);
    if ((rich || backups) && !(outcome.loss() >= 0)) return 3;
    if (backups && outcome.metric("largest") < 0) return 4;
    if (rich)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // newcomers need some time
    if (!world.leader() || batch.step() % 64 != 0) continue;
    std::printf("step %lld\n", static_cast<long long>(batch.step()));
    std::fflush(stdout);
  }
  if (kind == "late") {
    std::printf("behind\n");
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::seconds(world.leader() ? 30 : 3));
  }
  if (!world.leader()) return 0;
  std::printf("%s after %lld, sha256 %s\n", job.stopped() ? "stopped" : "done",
              static_cast<long long>(job.step()), job.weights_sha256().c_str());
}

#include "bench/step/worker.h"

#include <ATen/Context.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/autocast.h>
#include <lockstep/data.h>
#include <lockstep/errors.h>
#include <lockstep/job.h>
#include <lockstep/step.h>
#include <lockstep/trainer.h>
#include <lockstep/world.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/environment.h"
#include "base/memory_use.h"
#include "bench/faults/stamps.h"
#include "bench/measure/cores.h"
#include "bench/measure/time_lines.h"
#include "bench/step/clocks.h"
#include "bench/step/device.h"
#include "bench/step/job.h"
#include "control/device_choice.h"
#include "plan/tree.h"
#include "torch/device/onednn.h"
#include "torch/models/models.h"
#include "torch/optim/impl.h"
#include "torch/replica/replicated.h"

namespace lockstep::bench {
namespace {

// No weight decay, which is the default of every optimizer except AdamW. lockstep_bench_ddp.py and
// lockstep_bench_cuda.py have the same numbers.
constexpr double kLearningRate = 1e-3;
constexpr double kMomentum = 0.9;
constexpr double kWeightDecayOfAdamW = 1e-2;

constexpr std::int64_t kClasses = 10;
constexpr std::int64_t kVocabulary = 65;  // letters
// GPT-2's 50,257 tokens, rounded up to a number with which matrix products are fast, as is usual.
constexpr std::int64_t kVocabularyOfGpt2 = 50304;

DataShape shape_of(const StepJob& job) {
  if (job.model == "gpt")
    return {{job.context}, job.gpt_size == "gpt2" ? kVocabularyOfGpt2 : kVocabulary, true};
  if (job.model == "cnn") return {{1, 28, 28}, kClasses, false};
  if (job.model == "resnet18") return {{3, 32, 32}, kClasses, false};
  return {{784}, kClasses, false};
}

Batch random_batch(const DataShape& shape, std::int64_t samples) {
  std::vector<std::int64_t> sizes = shape.sample;
  sizes.insert(sizes.begin(), samples);
  const auto whole = torch::TensorOptions(torch::kInt64);
  if (shape.is_text) {
    return {torch::randint(shape.classes, sizes, whole),
            torch::randint(shape.classes, sizes, whole), samples};
  }
  return {torch::randn(sizes), torch::randint(shape.classes, {samples}, whole), samples};
}

// Reads the words that worker.h lists. Throws std::exception for others.
StepJob parse_step_job(const std::vector<std::string>& words) {
  if (words.size() != 12) throw BadInput("bench-step is started by `lockstep bench step`");
  return {words[0],
          std::stoi(words[1]),
          words[2],
          std::stoll(words[3]),
          words[4],
          std::stod(words[5]),
          std::stoll(words[6]),
          words[7],
          words[8],
          words[9],
          std::stoll(words[10]),
          std::stoull(words[11])};
}

// The same values on every worker. Without dropout, because systems draw different random numbers
// for it.
std::shared_ptr<models::Net> make_net(const StepJob& job, torch::Device device) {
  torch::manual_seed(0);
  auto net = models::make({job.model, job.gpt_size, 0.0, 0}, shape_of(job));
  net->to(device);
  // LibTorch's own optimizers have no masters.
  if (job.precision == "bf16-held" && job.system != "plain") hold_weights(*net, torch::kBFloat16);
  return net;
}

// Random samples, different on every worker.
Batch make_batch(const StepJob& job, int rank, torch::Device device) {
  torch::manual_seed(static_cast<std::uint64_t>(rank) + 1);
  Batch batch = random_batch(shape_of(job), job.batch);
  batch.data = batch.data.to(device);
  batch.target = batch.target.to(device);
  return batch;
}

// What a run of one of the training loops found.
struct StepTimes {
  std::vector<double> ms;  // one for each step of this worker
  double state_mb = 0;     // parameters and optimizer state of this worker; not known on cuda

  // Of the last step, if the system has a replica.
  std::optional<std::int64_t> buckets;
  std::optional<std::int64_t> buckets_before_end;  // reduced before the last gradient was there

  // Of all steps, if a Trainer ran them.
  std::optional<std::int64_t> graph_shards;  // shards that ran as CUDA graphs
  std::optional<std::int64_t> eager_shards;
  std::string eager_reason;  // why some that could have did not; empty: there were none
};

constexpr double kMegabyte = 1e6;

double megabytes(const std::vector<NamedTensor>& tensors) {
  double bytes = 0;
  for (const auto& one : tensors) bytes += static_cast<double>(one.tensor.nbytes());
  return bytes / kMegabyte;
}

// This worker's share of the memory for parameters and state, as the kernel counts it. The sum over
// workers is all of that memory.
double state_megabytes(const StepJob& job, const Replica& model, optim::Optimizer& optimizer) {
  if (job.on_cuda()) return 0;
  std::set<const void*> memories;
  const auto add = [&](const replica::FlatMemory& memory) {
    const int workers = memory.shared() ? replica::inside(model).parts().host().size() : 1;
    for (int worker = 0; worker < workers; ++worker) memories.insert(memory.of(worker));
  };
  add(replica::inside(model).parameters());
  add(replica::inside(model).parts().parameters->seen());
  for (const auto& memory : optim::inside(optimizer).trained.state.memories()) add(memory);
  double bytes = 0;
  for (const void* memory : memories)
    bytes += static_cast<double>(base::proportional_set_bytes(memory));
  return bytes / kMegabyte;
}

std::unique_ptr<torch::optim::Optimizer> stock_optimizer(const StepJob& job,
                                                         torch::nn::Module& net) {
  namespace stock = torch::optim;
  const auto parameters = net.parameters();
  if (job.optimizer == "adamw") {
    return std::make_unique<stock::AdamW>(
        parameters, stock::AdamWOptions(kLearningRate).weight_decay(kWeightDecayOfAdamW));
  }
  if (job.optimizer == "adam")
    return std::make_unique<stock::Adam>(parameters, stock::AdamOptions(kLearningRate));
  const double momentum = job.optimizer == "sgd" ? 0 : kMomentum;
  return std::make_unique<stock::SGD>(parameters,
                                      stock::SGDOptions(kLearningRate).momentum(momentum));
}

std::shared_ptr<optim::Optimizer> own_optimizer(const StepJob& job, Replica& model) {
  if (job.optimizer == "adamw") {
    return std::make_shared<optim::AdamW>(
        model, optim::AdamWOptions{.lr = kLearningRate, .weight_decay = kWeightDecayOfAdamW});
  }
  if (job.optimizer == "adam")
    return std::make_shared<optim::Adam>(model, optim::AdamOptions{.lr = kLearningRate});
  const double momentum = job.optimizer == "sgd" ? 0 : kMomentum;
  return std::make_shared<optim::SGD>(model,
                                      optim::SGDOptions{.lr = kLearningRate, .momentum = momentum});
}

// How many states of the size of the parameters a stock optimizer keeps.
int slots(const std::string& optimizer) {
  if (optimizer == "sgd") return 0;
  return optimizer == "sgd-momentum" ? 1 : 2;
}

// How many times a worker runs forward and backward in a step.
int passes_of(const StepJob& job, const World& world) {
  return plan::hosted_shards(world.rank(), world.size(), job.shards).size();
}

torch::Tensor loss_of(const StepJob& job, models::Net& net, const Batch& batch) {
  std::optional<Autocast> autocast;
  if (job.precision.starts_with("bf16")) autocast.emplace(torch::kCUDA, torch::kBFloat16);
  // Computed in the type of the model's output, as PyTorch does with autocast. models::loss() uses
  // float32.
  return torch::nn::functional::cross_entropy(net.forward(batch.data).flatten(0, -2),
                                              batch.target.flatten());
}

// The loss divided by the number of passes, as is usual in such loops.
torch::Tensor part_of_loss(const StepJob& job, models::Net& net, const Batch& batch, int passes) {
  const torch::Tensor loss = loss_of(job, net, batch);
  return passes > 1 ? loss / passes : loss;
}

void note_buckets(const Replica& model, StepTimes& result) {
  const BackwardTimes last = model.last_backward();
  result.buckets = static_cast<std::int64_t>(last.buckets);
  result.buckets_before_end = static_cast<std::int64_t>(last.launched_before_end);
}

struct PlainLoop {
  // Setting gradients to none is faster, and the default from LibTorch 2 on. LibTorch 1.13 sets
  // them to zero.
  bool set_to_none = true;
  bool meet = false;  // every step ends with a barrier of all workers
};

StepTimes run_plain(const StepJob& job, World& world, const PlainLoop& loop) {
  const auto net = make_net(job, world.device());
  const Batch batch = make_batch(job, world.rank(), world.device());
  const auto optimizer = stock_optimizer(job, *net);
  const int passes = passes_of(job, world);
  StepTimes result;
  result.ms = timed(job, world, [&] {
    net->zero_grad(loop.set_to_none);
    for (int pass = 0; pass < passes; ++pass) part_of_loss(job, *net, batch, passes).backward();
    optimizer->step();
    if (loop.meet) world.comm().barrier().wait();
  });
  result.state_mb = megabytes(replica::parameters_of(*net)) * (1 + slots(job.optimizer));
  return result;
}

// The drop-in loop in the world `training`: the whole world, or for `plain-flat` a world of one
// worker.
StepTimes run_drop_in(const StepJob& job, World& world, World& training,
                      DataParallelOptions options = {}) {
  options.bucket_bytes = job.bucket_bytes;
  auto model = data_parallel(make_net(job, world.device()), training, options);
  const Batch batch = make_batch(job, world.rank(), world.device());
  const auto optimizer = own_optimizer(job, model);
  const int passes = passes_of(job, world);
  StepTimes result;
  result.ms = timed(job, world, [&] {
    optimizer->zero_grad();
    for (int pass = 0; pass < passes; ++pass) {
      const NoSync no_sync = model.no_sync(pass + 1 < passes);
      part_of_loss(job, *model, batch, passes).backward();
    }
    optimizer->step();
  });
  note_buckets(model, result);
  result.state_mb = state_megabytes(job, model, *optimizer);
  return result;
}

// Always the same batch, whatever sample is asked for: reading data is not measured here.
class OneBatch : public Dataset {
 public:
  OneBatch(Batch batch, std::int64_t samples) : batch_(std::move(batch)), samples_(samples) {}
  std::int64_t size() const override { return samples_; }
  Batch batch(std::span<const Sample> samples) const override {
    const auto count = static_cast<std::int64_t>(samples.size());
    if (count >= batch_.samples) return batch_;
    return {batch_.data.narrow(0, 0, count), batch_.target.narrow(0, 0, count), count};
  }

 private:
  Batch batch_;
  std::int64_t samples_;
};

// For a job of shards: the same batch for every shard of every worker.
DatasetPtr one_batch(const StepJob& job, World& world) {
  constexpr std::int64_t kStepsOfAnEpoch = 1024;
  return std::make_shared<OneBatch>(make_batch(job, 0, world.device()),
                                    job.batch * job.shards * kStepsOfAnEpoch);
}

// A program's own loop over the batches of a lockstep::Job. What the loop does between two batches
// is part of a step.
StepTimes run_own_loop(const StepJob& job, World& world) {
  Job training(world, {.global_batch = job.batch * job.shards, .shards = job.shards});
  auto model =
      data_parallel(make_net(job, world.device()), world, {.bucket_bytes = job.bucket_bytes});
  const auto optimizer = own_optimizer(job, model);
  Step step(training, "train", {optimizer.get()},
            [&](const Shard& shard) { return loss_of(job, *model, shard.batch); });
  Batches batches =
      training.batches(one_batch(job, world), {.steps = most_steps(job), .loader_threads = 0});
  auto batch = batches.begin();
  StepTimes result;
  result.ms = timed(job, world, [&] {
    step(*batch);
    ++batch;
  });
  result.state_mb = state_megabytes(job, model, *optimizer);
  return result;
}

// A loop that goes on until the command asks for its end, and says of each step when it was there. Workers may be killed
// in it, and others join: nobody waits for anything but the job's own steps.
void run_stamped(const StepJob& job, World& world) {
  const base::Fd file(
      ::open(base::environment(kStampsVariable).value_or("").c_str(), O_RDWR | O_CLOEXEC));
  Stamps* const stamps = file ? map_stamps(file.get()) : nullptr;
  if (stamps == nullptr) throw BadInput("stamped is started by `lockstep bench faults`");
  Job training(world, {.global_batch = job.batch * job.shards, .shards = job.shards});
  auto model =
      data_parallel(make_net(job, world.device()), world, {.bucket_bytes = job.bucket_bytes});
  const auto optimizer = own_optimizer(job, model);
  Step step(training, "train", {optimizer.get()},
            [&](const Shard& shard) { return loss_of(job, *model, shard.batch); });
  constexpr std::int64_t kEndless = std::int64_t{1} << 40;
  for (const GlobalBatch& batch : training.batches(one_batch(job, world), {.steps = kEndless})) {
    step(batch);
    stamps->add(world.size(), batch.step());
    if (stamps->stop.load()) training.request_stop();
  }
}

void note_graphs(const TrainingResult& training, StepTimes& result) {
  result.graph_shards = training.shard_counts.replayed;
  result.eager_shards = training.shard_counts.eager;
  result.eager_reason = training.shard_counts.reason;
}

// Tells the Trainer to stop when the job has had its steps or its seconds.
StepTimes run_trainer(const StepJob& job, World& world, bool checked) {
  const auto net = make_net(job, world.device());
  auto model = data_parallel(net, world, {.bucket_bytes = job.bucket_bytes});
  const auto optimizer = own_optimizer(job, model);
  TrainerOptions options;
  options.global_batch = job.batch * job.shards;
  options.shards = job.shards;
  options.steps = most_steps(job);
  options.loader_threads = 0;
  options.check_divergence = checked;
  const auto clock = make_clock(job, world);
  Trainer* running = nullptr;
  TrainerHooks hooks;
  hooks.on_step = [&](const StepRecord& record) {
    if (clock->enough_after(record)) running->request_stop();
  };
  TrainerParts parts{
      model,     net,
      optimizer, one_batch(job, world),
      nullptr,   [&job, net](const Batch& batch) { return loss_of(job, *net, batch); },
      nullptr,   nullptr};
  Trainer trainer(world, parts, options, hooks);
  running = &trainer;
  const TrainingResult training = trainer.run();
  StepTimes result;
  result.ms = clock->milliseconds();
  note_graphs(training, result);
  note_buckets(model, result);
  result.state_mb = state_megabytes(job, model, *optimizer);
  return result;
}

// Runs the job's system. Collective: workers agree on the warm-up, on the number of steps and on
// the time of the first step. In `plain` and `plain-flat` they do not talk to each other after
// that.
StepTimes run_steps(const StepJob& job, World& world) {
  if (job.system == "plain") return run_plain(job, world, {});
  if (job.system == "plain-barrier") return run_plain(job, world, {.meet = true});
  if (job.system == "plain-zeroed") return run_plain(job, world, {.set_to_none = false});
  if (job.system == "step") return run_own_loop(job, world);
  if (job.system == "drop-in") return run_drop_in(job, world, world);
  if (job.system == "drop-in-forced")
    return run_drop_in(job, world, world, {.force_collectives = true});
  if (job.system == "trainer" || job.system == "trainer-deterministic")
    return run_trainer(job, world, true);
  if (job.system == "trainer-unchecked") return run_trainer(job, world, false);
  if (job.system != "plain-flat") throw BadInput("bench step: there is no system " + job.system);
  World alone = World::over(connect_alone());
  return run_drop_in(job, world, alone);
}

int number_of(const char* variable, int otherwise) {
  return static_cast<int>(base::environment_number(variable, 0, 1 << 20).value_or(otherwise));
}

bool is_deterministic(const StepJob& job) {
  return job.system.ends_with("-deterministic");
}

// Checked before anything else, because without a GPU the error of a world would be about the
// world.
void prepare_device(const StepJob& job) {
  if (!job.on_cuda()) return;
  const std::string problem = problem_with_cuda();
  if (!problem.empty()) throw Unavailable(problem);
  set_cuda_switches(is_deterministic(job));
}

void check_device(const StepJob& job, const World& world) {
  if (control::name(world.device().kind) == job.device) return;
  throw Unavailable(fmt::format("the job is for {}, and this worker's world is on {}", job.device,
                                world.device().text()));
}

nlohmann::json number_or_null(const std::optional<std::int64_t>& number) {
  return number ? nlohmann::json(*number) : nlohmann::json(nullptr);
}

void print_times(int rank, const std::string& facts, const StepTimes& times) {
  for (const std::string& line :
       lines_of_times({fmt::format("\"rank\":{}", rank), facts, "step_ms"}, times.ms)) {
    fmt::print("{}\n", line);
  }
  std::fflush(stdout);
}

std::string cuda_facts(const StepTimes& times) {
  const nlohmann::ordered_json facts = {
      {"buckets", number_or_null(times.buckets)},
      {"buckets_before_end", number_or_null(times.buckets_before_end)},
      {"graph_shards", number_or_null(times.graph_shards)},
      {"eager_shards", number_or_null(times.eager_shards)},
      {"eager_reason", times.eager_reason}};
  const std::string object = facts.dump();
  return object.substr(1, object.size() - 2);  // without its braces
}

void measure_steps(const std::vector<std::string>& words) {
  const StepJob job = parse_step_job(words);
  prepare_device(job);
  pin_worker(number_of("RANK", 0), std::max(number_of("WORLD_SIZE", 1), 1));
  at::set_num_threads(std::max(number_of("OMP_NUM_THREADS", 1), 1));
  at::globalContext().setUserEnabledMkldnn(device::kOneDnnIsFast);
  World world = join();
  check_device(job, world);
  if (job.system == "stamped") return run_stamped(job, world);
  const StepTimes times = run_steps(job, world);
  if (job.on_cuda()) {
    print_times(world.rank(), cuda_facts(times), times);
    world.comm().barrier().wait();
    return;
  }
  world.comm().barrier().wait();  // until here every worker still has its memory
  const double pss_mb = static_cast<double>(base::proportional_set_bytes()) / 1e6;
  world.comm().barrier().wait();
  print_times(world.rank(),
              fmt::format("\"pss_mb\":{:.2f},\"state_mb\":{:.3f}", pss_mb, times.state_mb), times);
}

// Ends the process: with 0, or with 1 and the problem on standard output.
[[noreturn]] void look_for_cuda() {
  const std::string problem = problem_with_cuda();
  if (!problem.empty()) fmt::print("{}\n", problem);
  std::fflush(stdout);
  std::_Exit(problem.empty() ? 0 : 1);
}

}  // namespace

void step_worker(const std::vector<std::string>& words) {
  try {
    if (words == std::vector<std::string>{"look-for-cuda"}) look_for_cuda();
    measure_steps(words);
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep-train bench-step: {}\n", error.what());
    std::_Exit(1);
  }
  std::_Exit(0);  // shutting LibTorch down takes time, which is not measured
}

}  // namespace lockstep::bench

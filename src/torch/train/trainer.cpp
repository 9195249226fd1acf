// One step of the job on this worker:
//
//   forward, backward   for every hosted shard, seeded for (job, step, shard), with the buffers of the
//                       step before, weighted by its samples; its gradients go where plan/ says
//   reduction           the sum over shards divided by the sum of weights
//   update              the learning rate of the step, the optimizer
//   buffers             become the first shard's, or the mean over shards
//                       Where workers share memory the two are one pass, after every worker's last
//                       backward; else the reduction goes with the last backward, in buckets
//   metrics             loss, stop requests and news of the divergence check from all workers, looked at before the next
//                       update, so that nobody waits
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <lockstep/trainer.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "base/memory_use.h"
#include "plan/accumulation.h"
#include "plan/position.h"
#include "plan/seed.h"
#include "plan/tree.h"
#include "torch/data/read.h"
#include "torch/optim/impl.h"
#include "torch/replica/agreement.h"
#include "torch/replica/replicated.h"
#include "torch/replica/tensors.h"
#include "torch/train/arithmetic.h"
#include "torch/train/checkpoint.h"
#include "torch/train/data_record.h"
#include "torch/train/device_shards.h"
#include "torch/train/divergence.h"
#include "torch/train/feeder.h"
#include "torch/train/generator_turn.h"
#include "torch/train/job.h"
#include "torch/train/metrics.h"
#include "torch/train/scopes.h"
#include "torch/train/shard_buffers.h"
#include "torch/train/weight_hashes.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

Batch moved(const Batch& batch, Device device) {
  const auto move = [&](const torch::Tensor& tensor) {
    return tensor.defined() ? tensor.to(torch::Device(device)) : tensor;
  };
  return {move(batch.data), move(batch.target), batch.samples};
}

}  // namespace

struct Trainer::State {
  State(World& its_world, TrainerParts its_parts, TrainerOptions its_options,
        TrainerHooks its_hooks);

  TrainingResult run(std::int64_t total_steps);
  void run_step(std::int64_t step);
  void run_shard(std::int64_t step, int shard, const Batch& batch, bool synchronises);
  torch::Tensor seeded_loss(std::int64_t step, int shard, const Batch& batch);
  void run_shards(std::int64_t step, bool synchronised);
  void exchange_weights();
  std::vector<int> shards_with_samples(std::int64_t step) const;
  void start_metrics();
  void collect();
  [[noreturn]] void replay(const train::DivergenceCheck::Undecided& undecided);
  void feed(train::Span steps);
  std::int64_t begin_hashes(std::int64_t first, std::int64_t end);
  void end_epoch(std::int64_t steps_done);
  void save_checkpoint(std::int64_t steps_done);
  std::int64_t resume(std::int64_t total_steps);
  TrainingResult result(std::int64_t first_step, std::int64_t steps_done, bool stopped);
  bool told_to_stop() const;
  Evaluation evaluate();
  Score evaluate_shard(int shard);
  std::optional<replica::Sharded> sharded_by_model() const;
  void make_banks();

  World& world;
  TrainerParts parts;
  TrainerOptions options;
  TrainerHooks hooks;
  train::DataRecord data;
  Comm control;
  train::StepMetrics metrics;
  std::optional<plan::Batches> batches;
  plan::ShardRange hosted;
  plan::ShardedReduction sharded;
  std::unique_ptr<train::ShardBuffers> shard_buffers;
  std::unique_ptr<train::DeviceShards> on_device;  // where the model is
  std::optional<train::DivergenceCheck> divergence;
  std::optional<train::WeightHashes> hashes;
  std::optional<train::Feeder> feeder;
  std::optional<train::CheckpointDirectory> checkpoints;
  bool in_one_pass = false;  // reduction and update
  std::atomic<bool> stop_requested{false};
  bool has_run = false;

  // Of the run so far.
  struct Progress {
    train::StepMetrics::Local local;  // of the step under way
    std::vector<double> weights;      // of its shards
    double total_weight = 0;          // of them all
    struct OnItsWay {
      train::StepMetrics::Local local;
      double total_weight = 0;
    };
    std::optional<OnItsWay> on_its_way;  // of the step before, on a GPU
    StepRecord record;                   // whose loss is still on its way
    bool stop = false;                   // agreed by all
    double exposed = 0;                  // ms of the step under way
    std::int64_t samples = 0;
    std::vector<double> step_ms;
    std::vector<double> exposed_ms;
    std::optional<Evaluation> evaluation;
    std::int64_t evaluated_at = -1;
    std::int64_t saved_at = -1;
  };
  Progress progress;
};

Trainer::State::State(World& its_world, TrainerParts its_parts, TrainerOptions its_options,
                      TrainerHooks its_hooks)
    : world(its_world),
      parts(std::move(its_parts)),
      options(std::move(its_options)),
      hooks(std::move(its_hooks)),
      control(world.open_channel()),
      metrics(world.open_channel()) {
  train::check_parts(parts);
  train::agree_on_checkpoints(control, options);
  if (options.shards == 0 && train::resumes(options))
    options.shards = train::saved_shards(control, options.checkpoint_directory);
  if (options.shards == 0 && options.accumulate > 0)
    options.shards = world.size() * options.accumulate;
  if (options.shards == 0) options.shards = default_shards(options.global_batch);
  train::check_options(options, world.size());
  using Directory = train::CheckpointDirectory;
  if (!options.checkpoint_directory.empty()) {
    checkpoints.emplace(
        control, options.checkpoint_directory, options.existing_checkpoint,
        options.verify_log.empty() ? Directory::Use::kWrites : Directory::Use::kReads);
  }
  std::vector<replica::Property> properties = {
      {"steps", std::to_string(options.steps)},
      {"epochs", std::to_string(options.epochs)},
      {"verify_data", options.verify_data ? "on" : "off"},
      {"hook on_gradients", hooks.on_gradients ? "set" : "none"},
      {"check_divergence", options.check_divergence ? "on" : "off"},
      {"hash_log", options.hash_log.empty() ? "none" : "set"},
      {"verify_until", std::to_string(options.verify_until)}};
  for (const auto& [name, value] : train::job_of(parts, options))
    properties.push_back({name, value});
  replica::agree(control, properties,
                 {"workers run different jobs", "start all of them with the same options"});
  data = train::record_of(
      *parts.train, options.verify_data ? train::DataReading::kWhole : train::DataReading::kSampled,
      data::PrefetchOptions{options.loader_threads, options.prefetch});
  train::agree_on_data(control, data);
  batches.emplace(train::data_options(parts, options));
  hosted = plan::hosted_shards(world.rank(), world.size(), options.shards);
  sharded = plan::plan_sharded_reduction(options.shards, world.size());
  replica::Replicated& model = replica::inside(parts.model);
  in_one_pass = model.reads_all_gradients() && !hooks.on_gradients;
  model.keep_one_copy();
  if (options.check_divergence) divergence.emplace(model, optim::inside(*parts.optimizer), control);
  shard_buffers = train::make_shard_buffers(model, options.buffers, options.shards);
  if (model.device().kind != DeviceKind::kCpu) {
    const device::CurrentDevice current(model.device());
    on_device = std::make_unique<train::DeviceShards>(
        model, parts.loss, options.cuda_graphs,
        train::DeviceShards::Size{hosted.size(), options.global_batch / options.shards});
  }
}

// In run(), since the next Trainer of the model may want others.
void Trainer::State::make_banks() {
  using Holds = replica::Banks::Holds;
  replica::Replicated& model = replica::inside(parts.model);
  model.banks().make(model.comm(), sharded.banks,
                     options.shards == world.size() ? Holds::kOneShard : Holds::kSums);
}

// What the model has to know of the shards where it reduces them itself; nothing when each worker has one.
std::optional<replica::Sharded> Trainer::State::sharded_by_model() const {
  if (in_one_pass || options.shards == world.size()) return std::nullopt;
  const plan::Accumulation& mine = sharded.workers[static_cast<std::size_t>(world.rank())];
  replica::Sharded rule{options.shards, {}, plan_partials(mine, hosted, options.shards)};
  for (const auto& held : mine.held) rule.held.push_back(held.bank);
  return rule;
}

bool Trainer::State::told_to_stop() const {
  return stop_requested.load() || (options.stop != nullptr && options.stop->load());
}

// Everybody's weights, where a function gives them: each is one worker's, and zero elsewhere. One that is no weight
// is found by all workers here.
void Trainer::State::exchange_weights() {
  auto& weights = progress.weights;
  if (parts.weight) control.all_reduce({weights.data(), weights.size(), DType::kFloat64}).wait();
  progress.total_weight = 0;
  for (std::size_t shard = 0; shard < weights.size(); ++shard) {
    progress.total_weight += weights[shard];
    if (!std::isnan(weights[shard])) continue;
    throw BadInput(fmt::format(
        "shard {} has a weight that is none: it must be above 0 and finite, in every step", shard));
  }
}

void Trainer::State::run_step(std::int64_t step) {
  replica::Replicated& model = replica::inside(parts.model);
  progress.local = {};
  progress.weights.assign(static_cast<std::size_t>(options.shards), 0);
  for (int shard = 0; shard < options.shards && !parts.weight; ++shard)
    progress.weights[static_cast<std::size_t>(shard)] = batches->weight(step, shard);
  if (parts.learning_rate) parts.optimizer->set_lr(parts.learning_rate(step));
  if (in_one_pass) {
    run_shards(step, false);
    const auto began = Clock::now();
    exchange_weights();
    model.shards().finish_unreduced();
    collect();
    progress.exposed = milliseconds(Clock::now() - began);
    optim::Optimizer::Impl& optimizer = optim::inside(*parts.optimizer);
    model.banks().use(0);
    optimizer.update->step(optim::GradientSource::everyones(model, sharded, progress.total_weight));
    progress.exposed += milliseconds(optimizer.update->waited());
  } else {
    run_shards(step, true);
    model.banks().use_averages();
    collect();
    progress.exposed = milliseconds(model.shards().times().exposed());
    if (hooks.on_gradients) hooks.on_gradients(step);
    if (on_device) optim::inside(*parts.optimizer).update->take_along(on_device->note());
    parts.optimizer->step();
    progress.exposed += milliseconds(optim::inside(*parts.optimizer).update->waited());
  }
  shard_buffers->end_step(control, shards_with_samples(step));
  if (on_device) on_device->end_step();
  if (divergence && !on_device) progress.local.mark = divergence->mark(step);
}

void Trainer::State::run_shards(std::int64_t step, bool synchronised) {
  // The last backward synchronises. In a short batch the last shard may have none, and the banks of those before are
  // complete only after its turn.
  const int last = hosted.end - 1;
  const bool with_backward = synchronised && batches->count(step, last) > 0;
  replica::Replicated& model = replica::inside(parts.model);
  shard_buffers->begin_step();
  if (on_device) on_device->begin_step();
  for (const auto& planned : sharded.workers[static_cast<std::size_t>(world.rank())].steps) {
    for (const auto& [into, from] : planned.before) model.banks().add(into, from);
    if (planned.begins) {
      model.banks().begin(planned.bank);
    } else {
      model.banks().use(planned.bank);
    }
    const Batch batch = feeder->next();
    if (batch.samples > 0)
      run_shard(step, planned.shard, batch, with_backward && planned.shard == last);
    feeder->look_ahead();
  }
  if (synchronised && !with_backward) {
    exchange_weights();
    model.shards().reduce(progress.total_weight);
  }
}

// LibTorch's generator belongs to the process. Workers may be threads of one, with any engine, and then take turns:
// what a shard draws between its seed and its loss is its own. Alone in a process nobody waits here. Backward goes
// without, since it meets the other workers; what LibTorch drops there was drawn in forward.
torch::Tensor Trainer::State::seeded_loss(std::int64_t step, int shard, const Batch& batch) {
  const std::lock_guard turn(train::generator_turn());
  torch::manual_seed(plan::shard_seed(options.seed, step, shard));
  torch::Tensor loss;
  train::say_where({"loss", step, shard}, [&] { loss = parts.loss(batch); });
  return loss;
}

void Trainer::State::run_shard(std::int64_t step, int shard, const Batch& batch,
                               bool synchronises) {
  double& weight = progress.weights[static_cast<std::size_t>(shard)];
  if (parts.weight) weight = parts.weight(batch);
  if (!(weight > 0) || !std::isfinite(weight)) weight = std::nan("");
  shard_buffers->begin_shard();
  torch::Tensor loss;
  if (!on_device) {
    loss = seeded_loss(step, shard, batch);
    shard_buffers->end_shard(shard);
  }
  if (synchronises) {
    exchange_weights();
    replica::inside(parts.model).shards().reduce_next(progress.total_weight);
  }
  if (on_device) {
    train::say_where({"loss", step, shard}, [&] {
      on_device->run(batch, shard, plan::shard_seed(options.seed, step, shard), weight);
    });
    shard_buffers->end_shard(shard);
  } else {
    train::say_where({"backward pass", step, shard}, [&] {
      loss.backward(torch::full_like(loss, weight));
      progress.local.weighted_losses[shard] = weight * loss.item<double>();
    });
  }
}

std::vector<int> Trainer::State::shards_with_samples(std::int64_t step) const {
  std::vector<int> shards;
  for (int shard = 0; shard < options.shards; ++shard) {
    if (batches->count(step, shard) > 0) shards.push_back(shard);
  }
  return shards;
}

// What the others should know of the step. On a GPU it is not known before collect().
void Trainer::State::start_metrics() {
  progress.local.stop = told_to_stop();
  if (on_device) {
    progress.on_its_way = {progress.local, progress.total_weight};
  } else {
    metrics.start(progress.local, options.shards, progress.total_weight);
  }
}

// The loss of the step before, which has travelled meanwhile; from a GPU it has come so far only to this host.
void Trainer::State::collect() {
  if (auto& own = progress.on_its_way) {
    own->local.weighted_losses = on_device->losses(Deadline::after(control.timeout()));
    optim::inside(*parts.optimizer).update->collect();
    if (divergence) own->local.mark = divergence->mark(progress.record.step);
    metrics.start(own->local, options.shards, own->total_weight);
    own.reset();
  }
  if (!metrics.pending()) return;
  const auto global = metrics.finish();
  if (divergence) {
    if (const auto undecided = divergence->judge(progress.record.step, global.marks))
      replay(*undecided);
  }
  progress.record.loss = global.loss;
  progress.stop = global.stop;
  if (hooks.on_step) hooks.on_step(progress.record);
  if (!std::isfinite(global.loss)) {
    throw BadInput(fmt::format(
        "the loss is {} at step {}: training has diverged; lower the learning rate ({:g} there), "
        "warm it up, or look for bad samples{}",
        global.loss, progress.record.step, progress.record.lr,
        progress.saved_at >= 0
            ? fmt::format("; the checkpoint of step {} is untouched", progress.saved_at)
            : ""));
  }
}

// Runs the steps from the last checkpoint up to the one on which two copies differ again: what comes of it is right.
void Trainer::State::replay(const train::DivergenceCheck::Undecided& undecided) {
  if (progress.saved_at < 0) {
    throw Mismatch(
        undecided.text +
        ": without a third copy, or a checkpoint to replay from, nobody can say which of "
        "them is wrong; run with checkpoints");
  }
  const std::int64_t from =
      checkpoints->read(parts.model, *parts.optimizer, train::job_of(parts, options));
  if (from < 0)
    throw Mismatch(undecided.text + ", and the checkpoint to replay the step from has gone");
  feed({from, undecided.step + 1});
  for (std::int64_t step = from; step <= undecided.step; ++step) {
    run_step(step);
    if (!on_device) continue;
    optim::inside(*parts.optimizer).update->collect();
    divergence->mark(step);
  }
  divergence->verdict(undecided);
}

void Trainer::State::feed(train::Span steps) {
  feeder.reset();
  feeder.emplace(parts.train, train::data_options(parts, options), hosted, steps,
                 data::PrefetchOptions{options.loader_threads, options.prefetch},
                 replica::inside(parts.model).device());
}

void Trainer::State::end_epoch(std::int64_t steps_done) {
  collect();
  progress.evaluation = evaluate();
  progress.evaluated_at = steps_done;
  const std::int64_t epoch = steps_done / batches->steps_per_epoch() - 1;
  if (progress.evaluation->samples > 0 && hooks.on_epoch)
    hooks.on_epoch(epoch, *progress.evaluation);
}

void Trainer::State::save_checkpoint(std::int64_t steps_done) {
  if (!checkpoints || progress.saved_at == steps_done || !options.verify_log.empty()) return;
  collect();
  if (divergence) divergence->check_at_rest(steps_done - 1);
  checkpoints->write(parts.model, *parts.optimizer, steps_done,
                     train::with_data(train::job_of(parts, options), data));
  progress.saved_at = steps_done;
  if (hooks.on_checkpoint) hooks.on_checkpoint(checkpoints->path(), steps_done);
}

std::int64_t Trainer::State::resume(std::int64_t total_steps) {
  if (!train::resumes(options)) return 0;
  const std::int64_t step =
      checkpoints->read(parts.model, *parts.optimizer, train::job_of(parts, options));
  if (step < 0) return 0;
  if (options.verify_log.empty() && step > total_steps && world.leader()) {
    base::log(
        base::LogLevel::kWarn,
        "the checkpoint in {} is of step {}, and this job ends after {}: nothing is left to do",
        options.checkpoint_directory, step, total_steps);
  }
  replica::inside(parts.model).note_update();
  data = train::continued(control, options.checkpoint_directory, data);
  progress.saved_at = step;
  return step;
}

// Returns the end of the steps to run: those that can be compared, where that is all that is wanted.
std::int64_t Trainer::State::begin_hashes(std::int64_t first, std::int64_t end) {
  if (options.hash_log.empty() && options.verify_log.empty()) return end;
  hashes.emplace(control, replica::inside(parts.model).model().everything(),
                 train::WeightHashes::Files{options.hash_log, options.verify_log},
                 train::with_data(train::job_of(parts, options), {data.sampled, ""}));
  hashes->begin(first);
  if (options.verify_log.empty()) return end;
  std::int64_t last = std::min(end, hashes->compared_end());
  if (options.verify_until >= 0) last = std::min(last, options.verify_until + 1);
  return std::max(last, first);
}

Evaluation Trainer::State::evaluate() {
  if (!parts.test || !parts.score) return {};
  const train::EvaluationScope evaluating(*parts.module);
  // By shard, so that the batches and the order of addition depend on the job alone. Last come whole numbers, which
  // may be added in any order.
  const auto shards = static_cast<std::size_t>(options.shards);
  std::vector<double> sums(shards + 2);
  for (int shard = hosted.begin; shard < hosted.end; ++shard) {
    const Score score = evaluate_shard(shard);
    sums[static_cast<std::size_t>(shard)] = score.loss;
    sums[shards] += static_cast<double>(score.correct);
    sums[shards + 1] += static_cast<double>(score.predictions);
  }
  control.all_reduce({sums.data(), sums.size(), DType::kFloat64}).wait();
  const double loss = plan::tree_sum(std::span(sums).first(shards));
  return {loss / sums[shards + 1], sums[shards] / sums[shards + 1], parts.test->size()};
}

Score Trainer::State::evaluate_shard(int shard) {
  Score sum;
  const auto own = plan::evaluation_samples(parts.test->size(), shard, options.shards);
  // A shard's batch fits into memory with its backward pass, so without one it does.
  const auto most = static_cast<std::size_t>(options.global_batch / options.shards);
  for (std::size_t first = 0; first < own.size(); first += most) {
    const std::size_t count = std::min(most, own.size() - first);
    const auto samples =
        samples_of(std::span(own).subspan(first, count), /*epoch=*/0, options.seed);
    Batch batch = data::read(*parts.test, samples);
    if (on_device) batch = moved(batch, replica::inside(parts.model).device());
    Score score;
    train::say_where({"score", -1, shard}, [&] { score = parts.score(batch); });
    sum.loss += score.loss;
    sum.correct += score.correct;
    sum.predictions += score.predictions;
  }
  return sum;
}

TrainingResult Trainer::State::result(std::int64_t first_step, std::int64_t steps_done,
                                      bool stopped) {
  TrainingResult result;
  result.first_step = first_step;
  result.steps = steps_done;
  result.shards = options.shards;
  if (on_device) result.on_device = on_device->counts();
  result.stopped = stopped;
  if (steps_done > first_step) result.final_loss = progress.record.loss;
  if (progress.evaluated_at != steps_done && !stopped && options.verify_log.empty())
    progress.evaluation = evaluate();
  if (hashes) result.verified = hashes->compared();
  if (progress.evaluation && progress.evaluation->samples > 0)
    result.evaluation = progress.evaluation;
  for (const double ms : progress.step_ms) result.seconds += ms / 1000;
  if (result.seconds > 0)
    result.samples_per_second = static_cast<double>(progress.samples) / result.seconds;
  result.step_ms_p50 = train::percentile(progress.step_ms, 0.5);
  result.step_ms_p95 = train::percentile(progress.step_ms, 0.95);
  result.exposed_comm_ms_p50 = train::percentile(progress.exposed_ms, 0.5);
  auto memory = static_cast<std::int64_t>(base::proportional_set_bytes());
  control.all_reduce({&memory, 1, DType::kInt64}).wait();
  result.memory_bytes = static_cast<std::size_t>(memory);
  result.replicas_identical = parts.model.identical();
  result.weights_sha256 = replica::digest(replica::inside(parts.model).model().everything());
  if (checkpoints) result.checkpoint = checkpoints->path();
  return result;
}

int default_shards(std::int64_t global_batch) {
  return plan::default_shards(global_batch);
}

Trainer::Trainer(World& world, TrainerParts parts, TrainerOptions options, TrainerHooks hooks)
    : state_(
          std::make_unique<State>(world, std::move(parts), std::move(options), std::move(hooks))) {}
Trainer::~Trainer() = default;

std::int64_t Trainer::steps_per_epoch() const {
  return state_->batches->steps_per_epoch();
}

std::int64_t Trainer::total_steps() const {
  const TrainerOptions& options = state_->options;
  return options.steps > 0 ? options.steps : options.epochs * steps_per_epoch();
}

int Trainer::shards() const {
  return state_->options.shards;
}

void Trainer::request_stop() noexcept {
  state_->stop_requested.store(true);
}

Evaluation Trainer::evaluate() {
  return state_->evaluate();
}

TrainingResult Trainer::State::run(std::int64_t total_steps) {
  // Until the run ends, however it ends.
  const auto held = checkpoints ? checkpoints->take_lock() : std::nullopt;
  const train::DeviceScope on_its_stream(replica::inside(parts.model));
  parts.module->train();
  parts.optimizer->zero_grad();
  const std::int64_t first = resume(total_steps);
  make_banks();
  const train::RunScope scope(replica::inside(parts.model), optim::inside(*parts.optimizer),
                              sharded_by_model(),
                              {divergence.has_value(), divergence && in_one_pass});
  const std::int64_t end = begin_hashes(first, std::max(total_steps, first));
  feed({first, end});
  const std::int64_t steps_per_epoch = batches->steps_per_epoch();
  std::int64_t step = first;
  while (step < end && !progress.stop) {
    const auto began = Clock::now();
    run_step(step);
    const double exposed = progress.exposed;
    start_metrics();
    progress.step_ms.push_back(milliseconds(Clock::now() - began));
    progress.exposed_ms.push_back(exposed);
    progress.samples += batches->position(step).entries;
    progress.record = {
        step, step / steps_per_epoch, 0, parts.optimizer->lr(), progress.step_ms.back(), exposed};
    if (hashes) hashes->record(step);
    ++step;
    const std::int64_t every = options.checkpoint_every_steps;
    const bool epoch_ended = step % steps_per_epoch == 0;
    if (epoch_ended && options.verify_log.empty()) end_epoch(step);
    if (every > 0 ? step % every == 0 : epoch_ended) save_checkpoint(step);
  }
  collect();
  if (divergence) divergence->check_at_rest(step - 1);
  feeder.reset();
  save_checkpoint(step);
  {
    // What the program draws next must not depend on which shards this worker had.
    const std::lock_guard turn(train::generator_turn());
    torch::manual_seed(plan::shard_seed(options.seed, step, options.shards));
  }
  return result(first, step, step < end);
}

TrainingResult Trainer::run() {
  if (std::exchange(state_->has_run, true)) throw BadInput("a Trainer runs once: make another");
  TrainingResult result;
  train::in_plain_words([&] { result = state_->run(total_steps()); });
  return result;
}

}  // namespace lockstep

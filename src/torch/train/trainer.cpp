// The Trainer: a loop around a job with one Step. It adds hooks, evaluation after every epoch, hash logs and a report.
#include <lockstep/errors.h>
#include <lockstep/trainer.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "base/memory_use.h"
#include "control/faults.h"
#include "torch/replica/tensors.h"
#include "torch/step/arithmetic.h"
#include "torch/step/job_core.h"
#include "torch/train/weight_hashes.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

// The smallest value that is not below this share of the values; 0 if there are none. By nearest rank.
double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const double rank = std::ceil(share * static_cast<double>(values.size()));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::max(rank, 1.0)) - 1;
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// Memory of all workers together, in bytes. Collective.
std::size_t memory_of_all(Comm& comm) {
  auto memory = static_cast<std::int64_t>(base::proportional_set_bytes());
  comm.all_reduce({&memory, 1, DType::kInt64}).wait();
  return static_cast<std::size_t>(memory);
}

void check_parts(const TrainerParts& parts) {
  if (!parts.optimizer || !parts.train || !parts.module || !parts.loss)
    throw BadInput("a Trainer wants a module, an optimizer, training data and a loss");
  if (steps::ModelView(*parts.optimizer) != steps::ModelView(parts.model))
    throw BadInput("the Trainer's optimizer was made for another model than its own");
  if (parts.plateau && (!parts.test || !parts.score || parts.learning_rate)) {
    throw BadInput(
        "a Trainer's plateau wants test data and a score, and no learning_rate of steps beside it");
  }
}

steps::JobSetup setup_of(const TrainerParts& parts, const TrainerOptions& options) {
  auto properties = options.job;
  // Named only where it is used, so that jobs of before go on from their checkpoints.
  if (parts.plateau) properties["plateau"] = parts.plateau->text();
  return {.options = {.global_batch = options.global_batch,
                      .shards = options.shards,
                      .seed = options.seed,
                      .buffers = options.buffers,
                      .local_steps = options.local_steps,
                      .properties = std::move(properties),
                      .check_divergence = options.check_divergence,
                      .checkpoint = options.checkpoint_directory,
                      .checkpoint_every_steps = options.checkpoint_every_steps,
                      .checkpoint_every_seconds = options.checkpoint_every_seconds,
                      .keep_checkpoints = options.keep_checkpoints,
                      .existing_checkpoint = options.existing_checkpoint,
                      .stop = options.stop},
          .accumulate = options.accumulate,
          .only_reads = !options.verify_log.empty()};
}

BatchesOptions batches_of(const TrainerOptions& options) {
  return {.epochs = options.epochs,
          .steps = options.steps,
          .weighted = options.weighted,
          .loader_threads = options.loader_threads,
          .prefetch = options.prefetch,
          .verify_data = options.verify_data};
}

std::unique_ptr<steps::StepCore> step_of(const TrainerParts& parts, const TrainerOptions& options,
                                         const TrainerHooks& hooks, GradScaler* scaler) {
  StepOptions step{.learning_rate = parts.learning_rate,
                   .scaler = scaler,
                   .noise_scale_every = options.noise_scale_every,
                   .before_update = hooks.on_gradients,
                   .cuda_graphs = options.cuda_graphs};
  if (parts.weight)
    step.weight = [weight = parts.weight](const Shard& shard) { return weight(shard.batch); };
  const auto loss = [loss = parts.loss](const Shard& shard) { return loss(shard.batch); };
  return std::make_unique<steps::StepCore>(
      steps::StepCore{"train", {parts.optimizer.get()}, loss, std::move(step)});
}

// What workers must agree on besides the job's properties.
std::vector<replica::Property> run_of(const TrainerOptions& options) {
  return {{"hash_log", options.hash_log.empty() ? "none" : "set"},
          {"verify_until", std::to_string(options.verify_until)}};
}

}  // namespace

// The times of a run's steps so far, and how many of them had no update.
struct RunTimes {
  std::vector<double> step_ms;     // of a step of a round, in the mean
  std::vector<double> exposed_ms;  // the part of each step that it waited for other workers
  double seconds = 0;
  double samples = 0;  // that counted
  double dropped = 0;  // that did not
  std::int64_t skipped = 0;

  void fill(TrainingResult& result) const {
    result.skipped_steps = skipped;
    result.dropped = dropped / std::max(dropped + samples, 1.0);
    result.seconds = seconds;
    if (result.seconds > 0) result.samples_per_second = samples / result.seconds;
    result.step_ms_p50 = percentile(step_ms, 0.5);
    result.step_ms_p95 = percentile(step_ms, 0.95);
    result.exposed_comm_ms_p50 = percentile(exposed_ms, 0.5);
  }
};

// What a Trainer has. It never moves, because the job's hooks point to it.
struct Trainer::State {
  State(World& world, TrainerParts its_parts, TrainerOptions its_options, TrainerHooks its_hooks);

  TrainingResult run();
  void run_step(steps::Loop& loop);
  void end_epoch(std::int64_t epoch, std::int64_t steps_done);
  std::int64_t begin_hashes(std::int64_t first, std::int64_t end);
  TrainingResult result(steps::Loop& loop, std::int64_t first_step);
  Evaluation evaluate();
  steps::JobHooks observe();

  TrainerParts parts;
  TrainerOptions options;
  TrainerHooks hooks;
  std::optional<GradScaler> scaler;  // before the job, which uses it
  std::shared_ptr<steps::JobCore> job;
  steps::StepCore* step = nullptr;
  std::optional<train::WeightHashes> hashes;

  // Of the run so far.
  StepRecord record;  // of the last step; its loss comes later
  StepRecord told;    // the last that on_step was told of
  RunTimes times;
  std::optional<Evaluation> evaluation;
  std::int64_t evaluated_at = -1;
};

Trainer::State::State(World& world, TrainerParts its_parts, TrainerOptions its_options,
                      TrainerHooks its_hooks)
    : parts(std::move(its_parts)), options(std::move(its_options)), hooks(std::move(its_hooks)) {
  check_parts(parts);
  if ((options.steps > 0) == (options.epochs > 0))
    throw BadInput("a Trainer wants either steps or epochs");
  if (options.scaler) scaler.emplace(*options.scaler);
  job = steps::JobCore::make(world, setup_of(parts, options), observe());
  step = &job->add_step(step_of(parts, options, hooks, scaler ? &*scaler : nullptr));
  if (parts.plateau) job->keep("plateau", *parts.plateau);
  job->prepare(parts.train, batches_of(options), run_of(options));
}

steps::JobHooks Trainer::State::observe() {
  return {.on_result =
              [this](const steps::PhaseResult& result, bool again) {
                if (again) {  // `record` may be that of the next step already
                  told.again = true;
                  if (hooks.on_step) hooks.on_step(told);
                  return;
                }
                record.loss = result.loss();
                record.again = result.about().again;
                if (!result.noise().empty()) record.noise_scale = result.noise().front();
                told = record;
                if (!hooks.on_step) return;
                control::Faults::here().strike("hook", record.step);
                hooks.on_step(record);
              },
          .on_saved = hooks.on_checkpoint};
}

void Trainer::State::run_step(steps::Loop& loop) {
  const GlobalBatch& batch = loop.current();
  const auto began = Clock::now();
  const auto ran = job->run(*step, batch).result;
  if (!ran) return;
  times.skipped += ran->about().skipped ? 1 : 0;
  const double took = milliseconds(Clock::now() - began);
  const auto steps = static_cast<double>(batch.steps());
  times.seconds += took / 1000;
  times.step_ms.push_back(took / steps);
  times.exposed_ms.push_back(milliseconds(loop.run_of(*step).exposed()) / steps);
  const double dropped = ran->about().dropped * static_cast<double>(batch.samples());
  times.samples += static_cast<double>(batch.samples()) - dropped;
  times.dropped += dropped;
  record = {.step = batch.step(),
            .steps = batch.steps(),
            .epoch = batch.epoch(),
            .lr = parts.optimizer->lr(),
            .step_ms = times.step_ms.back(),
            .exposed_comm_ms = times.exposed_ms.back(),
            .skipped = ran->about().skipped,
            .dropped = ran->about().dropped};
  if (hashes) hashes->record(batch.step() + batch.steps() - 1);
  if (batch.ends_epoch() && (options.verify_log.empty() || parts.plateau))
    end_epoch(batch.epoch(), batch.step() + batch.steps());
}

void Trainer::State::end_epoch(std::int64_t epoch, std::int64_t steps_done) {
  job->settle();
  evaluation = evaluate();
  evaluated_at = steps_done;
  optim::Optimizer& optimizer = *parts.optimizer;
  if (parts.plateau) optimizer.set_lr(parts.plateau->step(evaluation->loss, optimizer.lr()));
  if (evaluation->samples > 0 && hooks.on_epoch) hooks.on_epoch(epoch, *evaluation);
}

// Returns where the loop ends. A run that only verifies ends with the log that it compares with.
std::int64_t Trainer::State::begin_hashes(std::int64_t first, std::int64_t end) {
  if (options.hash_log.empty() && options.verify_log.empty()) return end;
  hashes.emplace(job->generation().control, job->state().weights(),
                 train::WeightHashes::Files{options.hash_log, options.verify_log},
                 job->hashed_properties());
  hashes->begin(first);
  if (options.verify_log.empty()) return end;
  std::int64_t last = std::min(end, hashes->compared_end());
  if (options.verify_until >= 0) last = std::min(last, options.verify_until + 1);
  return std::max(last, first);
}

Evaluation Trainer::State::evaluate() {
  if (!parts.test || !parts.score) return {};
  return job->evaluate(*parts.test, parts.score, {parts.module});
}

TrainingResult Trainer::State::result(steps::Loop& loop, std::int64_t first_step) {
  TrainingResult result;
  result.first_step = first_step;
  result.steps = job->position();
  result.shards = job->options().shards;
  result.shard_counts = loop.run_of(*step).counts();
  result.stopped = result.steps < loop.end();
  if (result.steps > first_step) result.final_loss = record.loss;
  if (scaler) result.loss_scale = scaler->scale();
  if (step->noise) result.noise_scale = step->noise->front().average();
  if (evaluated_at != result.steps && !result.stopped && options.verify_log.empty())
    evaluation = evaluate();
  if (hashes) result.verified = hashes->compared();
  if (evaluation && evaluation->samples > 0) result.evaluation = evaluation;
  times.fill(result);
  result.memory_bytes = job->repeated([&] { return memory_of_all(job->generation().control); });
  result.replicas_identical = job->repeated([&] { return job->identical(); });
  result.weights_sha256 = replica::digest(job->state().weights());
  result.checkpoint = job->checkpoint_path();
  return result;
}

TrainingResult Trainer::State::run() {
  // Holds the lock on the run directory until the run ends, however it ends.
  const auto held = job->take_lock();
  parts.module->train();
  const auto loop = job->open(parts.train, batches_of(options));
  const std::int64_t first = job->position();
  loop->set_end(begin_hashes(first, loop->end()));
  for (bool more = loop->first(); more; more = loop->advance()) run_step(*loop);
  return result(*loop, first);
}

Trainer::Trainer(World& world, TrainerParts parts, TrainerOptions options, TrainerHooks hooks)
    : state_(
          std::make_unique<State>(world, std::move(parts), std::move(options), std::move(hooks))) {}
Trainer::~Trainer() = default;

std::int64_t Trainer::steps_per_epoch() const {
  return state_->job->plan().steps_per_epoch();
}

std::int64_t Trainer::total_steps() const {
  const TrainerOptions& options = state_->options;
  return options.steps > 0 ? options.steps : options.epochs * steps_per_epoch();
}

int Trainer::shards() const {
  return state_->job->options().shards;
}

const Replica& Trainer::reduced() const {
  const auto& locals = state_->step->locals;
  return locals.empty() ? state_->parts.model : locals.front()->largest_fragment();
}

void Trainer::request_stop() noexcept {
  state_->job->request_stop();
}

Evaluation Trainer::evaluate() {
  return state_->evaluate();
}

TrainingResult Trainer::run() {
  if (std::exchange(has_run_, true)) throw BadInput("a Trainer runs once: make another");
  TrainingResult result;
  steps::in_plain_words([&] { result = state_->run(); });
  return result;
}

}  // namespace lockstep

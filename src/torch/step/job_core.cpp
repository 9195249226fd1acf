#include "torch/step/job_core.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "base/log.h"
#include "control/doing.h"
#include "control/faults.h"
#include "control/gather_text.h"
#include "plan/rounds.h"
#include "plan/seed.h"
#include "torch/replica/model.h"
#include "torch/replica/synced_norms.h"
#include "torch/replica/tensors.h"
#include "torch/step/arithmetic.h"

namespace lockstep::steps {

// A loop that was left by break has numbers in flight. If they ended with the job, the link would fail, and the
// program could not use its world any more. After an exception nobody waits: other workers may not come.
JobCore::~JobCore() {
  const bool failed = progress_.running || progress_.partial || std::uncaught_exceptions() > 0;
  if (failed || !numbers_.pending || !numbers_.pending->in_flight()) return;
  try {
    numbers_.pending->wait();
  } catch (const Error&) {
    // The world is lost, and says so to the next who uses it.
  }
}

JobCore::JobCore(World& world, JobSetup setup, JobHooks hooks)
    : setup_(std::move(setup)),
      hooks_(std::move(hooks)),
      generation_(make_generation(world, setup_)),
      numbers_{nullptr, {}, std::nullopt, nullptr, world.open_channel()} {
  JobOptions& options = setup_.options;
  const plan::Rounds checked(options.local_steps);
  if (options.local_steps.enabled()) options.buffers = ShardBufferRule::kMean;
  if (options.checkpoint.empty()) return;
  using Use = CheckpointRules::Use;
  checkpoints_.emplace(generation_.control,
                       CheckpointRules{.directory = options.checkpoint,
                                       .existing = options.existing_checkpoint,
                                       .use = setup_.only_reads ? Use::kReads : Use::kWrites,
                                       .keep = options.keep_checkpoints,
                                       .every_s = options.checkpoint_every_seconds});
}

std::shared_ptr<JobCore> JobCore::make(World& world, JobSetup setup, JobHooks hooks) {
  static std::atomic<int> jobs{0};
  setup.number = jobs++;
  std::shared_ptr<JobCore> job(new JobCore(world, std::move(setup), std::move(hooks)));
  job->generation_.inventory->add(job);
  return job;
}

void JobCore::rebind(World& world) {
  if ((progress_.loop != nullptr || progress_.running) && !progress_.regroups)
    throw BadInput("a job goes to other workers between two loops, not in one or after a failure");
  if (!progress_.regroups) numbers_.pending.reset();
  // Some survivors may have heard of it before a worker was lost, and others not. Who asks will ask again.
  if (numbers_.pending) numbers_.pending->drop_asks();
  progress_.asked = {};
  JobSetup setup = setup_;
  setup.options.shards = setup_.asked_shards;  // workers that join ask for the same
  generation_ = make_generation(world, setup);
  if (setup.options.shards != setup_.options.shards)
    throw BadInput("a job cannot have another number of shards with other workers");
  numbers_.channel = world.open_channel();
  if (checkpoints_) checkpoints_->rebind();
  for (const auto& step : steps_) step->metrics.reset();  // agreed on again in the next call
}

void JobCore::keep(const std::string& name, const torch::Tensor& tensor) {
  if (is_prepared()) {
    throw BadInput(fmt::format(
        "keep() of {} comes after batches(), which has read the checkpoint: call it before", name));
  }
  if (name.empty()) throw BadInput("what a job keeps needs a name");
  const bool dense = tensor.defined() && tensor.layout() == torch::kStrided && !tensor.is_meta();
  if (!dense || !tensor.is_contiguous())
    throw BadInput(fmt::format("keep() of {}: a job keeps dense, contiguous tensors", name));
  for (const NamedTensor& other : models_.kept) {
    if (other.name == name)
      throw BadInput(fmt::format("the job keeps something else as {}: give each a name", name));
  }
  models_.kept.push_back({name, tensor.detach()});
}
void JobCore::keep(const std::string& name, ReduceLROnPlateau& plateau) {
  const auto count = static_cast<std::int64_t>(plateau.state_.size());
  keep(name, torch::from_blob(plateau.state_.data(), {count}, torch::kFloat64));
}

namespace {

void check_noise_scale(const StepCore& step, int shards) {
  const auto refuse = [&](const char* why) {
    throw BadInput(fmt::format("the Step {} cannot measure the noise scale: {}", step.name, why));
  };
  if (step.options.noise_scale_every < 0) refuse("noise_scale_every is below 0");
  if (step.options.weight)
    refuse("a function gives the weights of its shards, so their gradients differ in noise");
  if (shards < 2) refuse("it compares shards, and the job has one; give it two or more");
  for (optim::Optimizer* const optimizer : step.optimizers) {
    if (ModelView(*optimizer).codec() != nullptr)
      refuse(
          "its model has a codec, which changes the average, but not what shards are measured by");
  }
}

// Memory of the record, not a copy.
torch::Tensor tensor_of(NoiseRecord& record) {
  static_assert(sizeof(plan::NoiseSums) == 3 * sizeof(double));
  return torch::from_blob(record.data(), {static_cast<std::int64_t>(record.size()), 3},
                          torch::kFloat64);
}

}  // namespace

StepCore& JobCore::add_step(std::unique_ptr<StepCore> step) {
  if (is_prepared()) {
    throw BadInput(fmt::format(
        "the Step {} comes after batches(): make all Steps of a job before batches(), which reads "
        "the checkpoint into everything that they change",
        step->name));
  }
  if (step->name.empty() || !step->loss || step->optimizers.empty())
    throw BadInput("a Step wants a name, a loss and at least one optimizer");
  for (const auto& other : steps_) {
    if (other->name == step->name)
      throw BadInput(fmt::format("two Steps of the job are called {}", step->name));
  }
  for (auto at = step->optimizers.begin(); at != step->optimizers.end(); ++at) {
    if (*at == nullptr || std::find(at + 1, step->optimizers.end(), *at) != step->optimizers.end())
      throw BadInput(fmt::format("the Step {} has no optimizer, or one twice", step->name));
    if (ModelView(**at).comm().size() != generation_.size()) {
      throw BadInput(
          fmt::format("an optimizer of the Step {} trains a model of another world", step->name));
    }
  }
  if (setup_.options.local_steps.enabled()) make_local(*step);
  models_.add(*step);
  if (step->options.noise_scale_every != 0) {
    check_noise_scale(*step, generation_.shards);
    step->noise = std::make_shared<NoiseRecord>(step->optimizers.size());
  }
  steps_.push_back(std::move(step));
  return *steps_.back();
}

bool JobCore::identical() {
  bool all = true;
  for (ModelView& model : models_.all) all = model.identical() && all;
  return all;
}

Properties JobCore::properties() const {
  const JobOptions& options = setup_.options;
  Properties all = options.properties;
  for (const auto& [name, value] : arithmetic_in_use(models_.all.front().device()))
    all[name] = value;
  all["global_batch"] = std::to_string(options.global_batch);
  all["shards"] = std::to_string(options.shards);
  if (options.local_steps.enabled())  // which also say what becomes of buffers
    all["local_steps"] = to_string(options.local_steps);
  else
    all["buffers"] = options.buffers == ShardBufferRule::kMean ? "mean" : "first shard";
  all["seed"] = std::to_string(options.seed);
  all["samples"] = std::to_string(data_.samples);
  const auto count = std::count_if(models_.trained.begin(), models_.trained.end(),
                                   [](const auto& one) { return one.is_first_fragment(); });
  for (const JobModels::Trained& one : models_.trained) {
    if (!one.is_first_fragment()) continue;
    const std::string of =
        count > 1 ? "/" + (one.local ? one.local->name() : one.model.name()) : "";
    const optim::Optimizer& rules = one.local ? one.local->inner() : *one.optimizer;
    for (const auto& [name, value] : properties_of(rules, one.model)) all[name + of] = value;
  }
  for (const ModelView& model : models_.all) {
    const std::string norms = replica::describe_synced_norms(model.everything());
    const std::string of = models_.all.size() > 1 ? "/" + model.name() : "";
    if (!norms.empty()) all["sync_batchnorm" + of] = norms;
  }
  for (const auto& step : steps_) {
    const std::string of = steps_.size() > 1 ? "/" + step->name : "";
    if (step->options.weight) all["weight" + of] = "by function";
    const GradScaler* const scaler = step->options.scaler;
    if (scaler != nullptr && scaler->options().enabled)
      all["scaler" + of] = to_string(scaler->options());
    if (step->noise)
      all["noise_scale" + of] = fmt::format("every {} steps", step->options.noise_scale_every);
  }
  return all;
}

Properties JobCore::hashed_properties() const {
  return with_data(properties(), {data_.record.sampled, "", data_.record.sampling});
}

void JobCore::name_state() {
  state_ = models_.named_state();
  for (const auto& step : steps_) {
    if (step->noise) state_.add_noise_scale(step->name, tensor_of(*step->noise));
  }
}

void JobCore::prepare(const DatasetPtr& dataset, const BatchesOptions& options,
                      const std::vector<replica::Property>& more) {
  if (steps_.empty()) throw BadInput("the job has no Step: make one before batches()");
  data_.dataset = dataset;
  data_.options = options;
  data_.more = more;
  const bool again = is_prepared();
  if (!again) name_state();
  data_.samples = dataset->size();
  std::vector<replica::Property> all = {{"steps", std::to_string(options.steps)},
                                        {"epochs", std::to_string(options.epochs)},
                                        {"verify_data", options.verify_data ? "on" : "off"}};
  all.insert(all.end(), more.begin(), more.end());
  all.push_back({"check_divergence", setup_.options.check_divergence ? "on" : "off"});
  if (const auto& rule = setup_.options.local_steps.asynchronous)
    all.push_back({"replayed order", rule->replay.empty() ? "none" : rule->replay});
  for (const auto& step : steps_)
    all.push_back({"step " + step->name, step->options.before_update ? "hooked" : "plain"});
  for (const auto& [name, value] : properties()) all.push_back({name, value});
  for (const auto& [name, tensor] : models_.kept)
    all.push_back({"kept " + name, replica::describe(tensor)});
  replica::agree(generation_.control, all,
                 {"workers run different jobs", "start all of them with the same options"});
  DataRecord record = look_at(*dataset, options);
  agree_on_data(generation_.control, record);
  if (generation_.world.joined_later()) control::Faults::here().strike("join", 0);
  if (again &&
      (record.sampled != data_.record.sampled || record.sampling != data_.record.sampling)) {
    throw BadInput("batches() was called with other data before: a job has one data set");
  }
  plan_data(*dataset, options);
  if (!again || !record.whole.empty()) data_.record = std::move(record);
  // The program may have written to parameters before the loop.
  for (JobModels::Trained& trained : models_.trained) {
    const auto& local = trained.local;
    const bool begins = !again && !generation_.world.joined_later();
    const bool takes = local && trained.is_first_fragment() && !progress_.regroups;
    if (takes && (begins || local->was_written())) local->take_weights();
    trained.model.prepare(setup_.options.shards);
  }
}

DataRecord JobCore::look_at(const Dataset& dataset, const BatchesOptions& options) {
  const auto reading = options.verify_data ? DataReading::kWhole : DataReading::kSampled;
  if (const data::StreamSet* const streams = data::streams_in(dataset))
    return record_of_streams(*streams, setup_.options.shards, setup_.options.seed, reading);
  DataRecord record = record_of(dataset, reading, {options.loader_threads, options.prefetch});
  record.sampling = sampling_of(options.weighted);
  return record;
}

// The order of samples; of streams, also who reads them, and what checkpoints keep of them.
void JobCore::plan_data(const Dataset& dataset, const BatchesOptions& options) {
  const data::StreamSet* const streams = data::streams_in(dataset);
  auto weights = data::draws_of(options.weighted);
  if (streams != nullptr && weights) data::refuse_weighted_streams();
  if (streams != nullptr && streams->is_endless() && options.epochs > 0) {
    throw BadInput(
        "streams without an end have no epochs: give steps, or say how many samples an epoch has "
        "(StreamOptions::samples)");
  }
  const JobOptions& job = setup_.options;
  if (streams != nullptr && job.local_steps.asynchronous)
    throw BadInput(
        "asynchronous steps take samples by number: which worker reads what is not known before, "
        "so streams will not do");
  const bool again = is_prepared();
  data_.plan.emplace(plan::DataOptions{.samples = dataset.size(),
                                       .global_batch = job.global_batch,
                                       .shards = job.shards,
                                       .seed = job.seed,
                                       .shuffle = streams == nullptr,
                                       .weights = std::move(weights)});
  if (streams == nullptr) return data_.streams.reset();
  data_.streams = std::make_shared<data::StreamReader>(*streams, job.shards, job.seed);
  if (again) return;
  data_.positions.emplace(job.shards);
  state_.add_streams(data_.positions->table());
}

std::shared_ptr<Loop> JobCore::open(const DatasetPtr& dataset, const BatchesOptions& options) {
  if (progress_.loop != nullptr)
    throw BadInput("another loop of the job is open: a job has one at a time");
  if (progress_.running) {
    throw BadInput(
        "a step of the job has failed, and its models cannot be used any more: make the job again; "
        "it goes on from its checkpoint");
  }
  const std::int64_t end =
      options.steps > 0 ? options.steps : options.epochs * plan().steps_per_epoch();
  control::begin_loop(generation_.world);
  catch_up(progress_.commits);
  warn_beyond(end);
  progress_.asked.stop = progress_.stopped = false;
  if (data_.streams) data_.positions->read(*data_.streams);
  auto loop = std::make_shared<Loop>(shared_from_this(),
                                     data_.streams ? DatasetPtr(data_.streams) : dataset, options);
  loop->set_end(std::max(end, progress_.next));
  if (checkpoints_ && !setup_.only_reads) progress_.signal.emplace();
  return loop;
}

void JobCore::warn_beyond(std::int64_t end) const {
  if (setup_.only_reads || saved_at() <= end || generation_.rank() != 0) return;
  base::log(base::LogLevel::kWarn,
            "the checkpoint in {} is of step {}, and this job ends after {}: nothing is left to do",
            setup_.options.checkpoint, saved_at(), end);
}

// A worker that is behind takes the state of one that is further: it has joined, or the others have committed a phase
// without it. If no worker has run yet, all read the checkpoint. Returns whether this worker has taken it.
bool JobCore::catch_up(std::int64_t commits) {
  Comm& comm = generation_.control;
  std::vector<std::int64_t> positions(static_cast<std::size_t>(comm.size()));
  // 0 is for a worker that has never opened a loop; each worker fills in its own number.
  const std::int64_t own = progress_.opened ? commits + 1 : 0;
  positions[static_cast<std::size_t>(comm.rank())] = own;
  comm.all_reduce({positions.data(), positions.size(), DType::kInt64}).wait();
  const auto furthest = std::max_element(positions.begin(), positions.end());
  const bool all_equal = std::count(positions.begin(), positions.end(), *furthest) == comm.size();
  if (*furthest == 0) {
    progress_.opened = true;
    restore();
    if (generation_.world.restarted()) find_memory();
  } else if (!all_equal) {
    take_state_of(static_cast<int>(furthest - positions.begin()), own < *furthest);
  }
  progress_.opened = true;
  return own < *furthest;
}

void JobCore::take_state_of(int source, bool takes) {
  Comm& comm = generation_.control;
  auto mine = state_.values();
  mine["next"] = std::to_string(progress_.next);
  mine["commits"] = std::to_string(progress_.commits);
  const auto all = control::gather_text(comm, as_lines(mine));
  const auto values = numbers_in(all[static_cast<std::size_t>(source)]);
  if (takes) state_.expect(values);
  replica::bring_from(comm, source, state_.tensors(), takes);
  if (takes) state_.set_values(values);
  for (ModelView& model : models_.all) model.share_on_host();
  if (!takes || progress_.opened) return;  // a survivor knows where its own loop is
  progress_.next = static_cast<std::int64_t>(values.at("next"));
  progress_.commits = static_cast<std::int64_t>(values.at("commits"));
}

JobCore::Ran JobCore::run(StepCore& step, const GlobalBatch& batch) {
  if (progress_.loop == nullptr || &progress_.loop->current() != &batch)
    throw BadInput("a Step takes the batch that its job's loop is at, and no other");
  Loop& loop = *progress_.loop;
  if (progress_.running)
    throw BadInput("an earlier step of the job has failed: leave the loop, and make the job again");
  if (loop.has_phases() && saved_at() == batch.step() + batch.steps()) {
    throw BadInput(
        "save() came between two Steps of one batch, and its checkpoint counts the batch as done: "
        "call it after the last Step of a batch");
  }
  const Phase phase = loop.next_phase();
  if (numbers_.undecided) return {phase, nullptr};
  progress_.running = true;
  const StepRun& run = loop.run_of(step);
  if (step.options.learning_rate && step.locals.empty()) {
    for (optim::Optimizer* const optimizer : step.optimizers)
      optimizer->set_lr(step.options.learning_rate(phase.step));
  }
  if (records_calls()) calls_.push_back({phase.step, phase.number, &step, run.rates()});
  auto result = run_phase(step, phase);
  progress_.running = false;
  if (!result) return {phase, nullptr};
  ++progress_.commits;
  seal_memory();
  numbers_.pending = result;
  result->set_awaited([weak = weak_from_this()](PhaseResult& awaited) {
    if (const auto job = weak.lock()) return job->repeated([&] { awaited.wait(); });
    awaited.wait();
  });
  reseed(phase.step + phase.steps);
  return {phase, std::move(result)};
}

// Until the phase is committed. If workers are lost in it, the others finish it, or repeat it.
std::shared_ptr<PhaseResult> JobCore::run_phase(StepCore& step, const Phase& phase) {
  if (progress_.legacy) return take_over(step, phase);
  while (true) {
    try {
      std::shared_ptr<PhaseResult> result;
      StepRun& run = progress_.loop->run_of(step);
      const control::SayingPhase here(generation_.world);
      const auto meet = [&] {
        here.meets();
        return collect();
      };
      in_plain_words([&] {
        if (!run.run(phase, meet)) return;
        control::Faults::here().strike("numbers", phase.step);
        result = run.result(phase, numbers_.channel, asks());
      });
      if (result) numbers_.checks = run.checks();
      return result;
    } catch (const PeerLost&) {
      if (!can_recover()) throw;
    } catch (const Timeout&) {
      if (!can_recover()) throw;
    } catch (const Unavailable& error) {
      leave_if_broken(error);
      throw;
    } catch (const std::bad_alloc& error) {
      leave_if_broken(error);
      throw;
    }
    if (auto result = recover(step, phase)) return result;
  }
}

PhaseResult::Asks JobCore::asks() {
  return {.stop = told_to_stop(),
          .newcomers = generation_.world.newcomers() > 0,
          .checkpoint = checkpoints_ && checkpoints_->is_due(),
          .written = checkpoints_ && checkpoints_->has_ended()};
}

bool JobCore::told_to_stop() const {
  const auto* const also = setup_.options.stop;
  return stop_requested_.load() || (also != nullptr && also->load()) ||
         (progress_.signal && StopSignal::has_come());
}

// Looks at the numbers of the phase before. They have travelled while this phase computed; on a GPU they were only
// copied to the host, and wait() sends them. False if only a rerun can say what is right.
bool JobCore::collect() {
  if (numbers_.undecided) return false;
  if (!numbers_.pending) return true;
  // It stays pending if this throws: the operation may still use its memory.
  numbers_.pending->wait();
  const auto result = std::exchange(numbers_.pending, nullptr);
  const auto checks = std::exchange(numbers_.checks, {});
  const PhaseResult::About& about = result->about();
  for (std::size_t model = 0; model < checks.size(); ++model) {
    auto found = checked([&] { return checks[model]->judge(about.step, result->digests(model)); });
    if (!found) continue;
    numbers_.undecided = {checks[model], std::move(*found), about.phase};
    return false;
  }
  if (result->unknown_metric()) {
    throw BadInput(fmt::format(
        "a shard has reported a metric at step {} that no shard reported in the first call of its "
        "Step: report it there, too, with a weight of 0 if there is nothing to count",
        about.step));
  }
  progress_.asked.add(result->asks());
  tell_result(result);
  // A loss of a half type may overflow, too. A scaler that goes on from there has skipped the step.
  if (!about.skipped) check_loss(*result);
  return true;
}

void JobCore::check_loss(const PhaseResult& result) const {
  if (std::isfinite(result.loss())) return;
  const PhaseResult::About& about = result.about();
  const std::int64_t last = about.step + about.steps - 1;
  const std::string reason =
      last == 0 ? "it is the first step, so look for bad samples, or at the loss itself"
                : fmt::format(
                      "training has diverged; lower the learning rate ({:g} there), warm it up, or "
                      "look for bad samples",
                      about.lr);
  throw BadInput(fmt::format(
      "the loss{} is {} {}: {}{}", steps_.size() > 1 ? fmt::format(" of Step {}", about.name) : "",
      result.loss(),
      about.steps == 1 ? fmt::format("at step {}", last)
                       : fmt::format("in the round of steps {} to {}", about.step, last),
      reason,
      saved_at() >= 0 ? fmt::format("; the checkpoint of step {} is untouched", saved_at()) : ""));
}

void JobCore::settle() {
  if (!repeated([this] { return collect(); })) checked([this] { rerun(); });
}

// Runs the phases again, from the checkpoint up to the one in which two copies differ. The verdict compares what comes
// of that with what each worker had.
void JobCore::rerun() {
  const auto& [check, found, last] = *numbers_.undecided;
  if (saved_at() < 0 || progress_.loop == nullptr) {
    throw Mismatch(
        found.text +
        ": without a third copy, or a checkpoint to run the step again from, nobody can say which "
        "of them is wrong; run with checkpoints");
  }
  progress_.running = true;  // it ends in an exception: the job cannot be used after it
  Loop& loop = *progress_.loop;
  const std::int64_t on_disk = checkpoints_->on_disk();  // calls are known from there on
  const std::int64_t from = checkpoints_->read(state_, properties());
  if (from < 0 || from < on_disk)
    throw Mismatch(found.text + ", and the checkpoint to run the step again from is gone");
  if (data_.streams) data_.positions->read(*data_.streams);
  for (ModelView& model : models_.all) model.share_values();
  loop.go_back({from, loop.round_at(found.step).end});
  for (const Call& call : calls_) {
    if (call.step < from) continue;
    if (call.step > found.step || (call.step == found.step && call.phase > last)) break;
    loop.rerun_to(call.step);
    StepRun& run = loop.run_of(*call.of);
    run.set_rates(call.rates);
    run.run(loop.next_phase(), [] { return true; });
    for (divergence::Check* const each : run.checks()) each->digest(call.step);
  }
  check->verdict(found);
}

void JobCore::end_batch() {
  const GlobalBatch& batch = progress_.loop->current();
  progress_.next = batch.step() + batch.steps();
  // So that a job that is told to stop need not train two rounds more.
  if (batch.steps() > 1) settle();
  if (numbers_.undecided) checked([this] { rerun(); });
  save_if_due(batch);
  if (!can_recover()) return;
  generation_.world.allow_workers(setup_.options.shards);
  if (progress_.asked.newcomers && progress_.next < progress_.loop->end()) join_newcomers();
}

void JobCore::end_loop() {
  settle();
  checked([this] { progress_.loop->check_at_rest(progress_.next - 1); });
  progress_.stopped = progress_.asked.stop && progress_.next < progress_.loop->end();
  if (progress_.stopped) stop_requested_.store(false);
  note_streams(progress_.next);
  save();
  reseed(progress_.next);
}

// Random numbers that the program draws next must not depend on the shards that this worker has run.
void JobCore::reseed(std::int64_t step) const {
  const GeneratorTurn turn;
  torch::manual_seed(plan::shard_seed(setup_.options.seed, step, setup_.options.shards));
}

// Called however the loop was left. A batch that a Step has used counts as done.
void JobCore::leave(Loop& loop) noexcept {
  progress_.loop = nullptr;
  progress_.signal.reset();
  numbers_.checks.clear();
  if (!loop.has_phases()) return;
  progress_.next = std::max(progress_.next, loop.current().step() + loop.current().steps());
  progress_.partial = loop.is_unwound();
}

std::int64_t JobCore::position() const {
  const Loop* const loop = progress_.loop;
  if (loop == nullptr || !loop->has_phases()) return progress_.next;
  return loop->current().step() + loop->current().steps();
}

std::shared_ptr<const base::FileLock> JobCore::take_lock() {
  return checkpoints_ ? checkpoints_->take_lock() : nullptr;
}

std::vector<std::shared_ptr<torch::nn::Module>> JobCore::modules() const {
  std::vector<std::shared_ptr<torch::nn::Module>> all;
  for (const ModelView& model : models_.all) {
    if (auto module = model.module()) all.push_back(std::move(module));
  }
  for (const JobModels::Trained& trained : models_.trained) {
    if (auto module = trained.local ? trained.local->module() : nullptr)
      all.push_back(std::move(module));
  }
  return all;
}

}  // namespace lockstep::steps

#include "torch/step/step_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "control/announcements.h"
#include "control/faults.h"
#include "control/gather_text.h"
#include "plan/seed.h"
#include "plan/tree.h"
#include "torch/step/loop.h"

namespace lockstep::steps {
namespace {

// A worker that has left out a Step is in another call where workers meet, and gets a Mismatch before it writes.
std::string call_of(const StepCore& core, const Phase& phase) {
  return fmt::format("Step {} {} phase {}", core.name, phase.step, phase.number);
}

}  // namespace

using Clock = std::chrono::steady_clock;

// A gradient that still overflows with this scale is no question of float16's range.
constexpr double kLeastScale = 1.0 / (1 << 24);

StepRun::StepRun(StepCore& core, Loop& loop) : core_(core), loop_(loop) {
  ShardWork work;
  work.loss = core_.loss;
  // If there are other models, backward is told whose gradients to compute: theirs would be added to by mistake.
  const bool spares = loop_.models().size() > 1 || has_others(loop_.models());
  for (const optim::Optimizer* const optimizer : core_.optimizers) {
    parts_.push_back(part_of(*optimizer));
    work.models.push_back(parts_.back().model);
    if (!spares) continue;
    const auto tensors = parts_.back().model->model().trained();
    work.inputs.insert(work.inputs.end(), tensors.begin(), tensors.end());
  }
  for (const ModelView& model : loop_.models()) {
    const auto tensors = model.everything();
    work.tensors.insert(work.tensors.end(), tensors.begin(), tensors.end());
    work.buffers.insert(work.buffers.end(), model.buffers().begin(), model.buffers().end());
    if (const torch::Tensor bytes = model.buffer_bytes(); bytes.defined())
      work.buffer_bytes.push_back(bytes);
  }
  work.graphs = core_.options.cuda_graphs;
  work.locals = core_.locals;
  work.learning_rate = core_.options.learning_rate;
  work.generation = &loop_.generation();
  if (const auto& rule = loop_.local_steps().asynchronous)
    work.shared = ShardWork::Shared{*rule, loop_.job_digest()};
  work.samples = loop_.plan().options().global_batch / loop_.generation().shards;
  runner_ = make_shard_runner(std::move(work));
}

StepRun::Part StepRun::part_of(const optim::Optimizer& optimizer) const {
  Part part{.number = loop_.number_of(optimizer)};
  Loop::Trained& trained = loop_.trained(part.number);
  part.model = &trained.step;
  part.check = trained.check ? &*trained.check : nullptr;
  for (const auto& local : core_.locals)
    if (local->is_streamed()) part.fragment = local->fragment_of(optimizer).value_or(part.fragment);
  return part;
}

void StepRun::choose(const Phase& phase) {
  models_.clear();
  numbers_.clear();
  checks_.clear();
  const int exchanged = loop_.exchanged(phase.step);
  for (const Part& part : parts_) {
    const bool is_in = exchanged == LocalModel::kAll || part.fragment == LocalModel::kAll ||
                       part.fragment == exchanged;
    if (!is_in) continue;
    models_.push_back(part.model);
    numbers_.push_back(part.number);
    if (part.check != nullptr) checks_.push_back(part.check);
  }
}

// The mean over the steps of a round: exactly 1 for a shard that is full in all of them.
StepRun::Weights StepRun::known_weights(const Phase& phase) const {
  Weights weights;
  weights.by_shard.assign(static_cast<std::size_t>(loop_.generation().shards), 0);
  for (int shard = 0; shard < loop_.generation().shards && !core_.options.weight; ++shard) {
    double& weight = weights.by_shard[static_cast<std::size_t>(shard)];
    for (std::int64_t step = phase.step; step < phase.step + phase.steps; ++step)
      weight += loop_.plan().weight(step, shard);
    weight /= static_cast<double>(phase.steps);
  }
  return weights;
}

std::int64_t StepRun::samples_of(const Phase& phase, int shard) const {
  std::int64_t samples = 0;
  for (std::int64_t step = phase.step; step < phase.step + phase.steps; ++step)
    samples += loop_.plan().count(step, shard);
  return samples;
}

// A property of the job: it depends on the step and the data alone. Shards of different sizes say nothing, because their
// gradients differ in noise.
bool StepRun::measures(std::int64_t step) const {
  if (!core_.noise || step % core_.options.noise_scale_every != 0) return false;
  const std::int64_t samples = loop_.plan().count(step, 0);
  for (int shard = 1; shard < loop_.plan().options().shards; ++shard) {
    if (loop_.plan().count(step, shard) != samples) return false;
  }
  return samples > 0;
}

// The sum of all weights. If a function gives them, one worker has each and the others have 0, so a sum brings them to
// all. run_shard() has put NaN for a bad weight: all workers find it here, and fail together.
double StepRun::exchange(Weights& weights) {
  if (weights.total) return *weights.total;
  auto& all = weights.by_shard;
  if (core_.options.weight)
    loop_.generation().control.all_reduce({all.data(), all.size(), DType::kFloat64}).wait();
  double total = 0;
  for (std::size_t shard = 0; shard < all.size(); ++shard) {
    total += all[shard];
    if (!std::isnan(all[shard])) continue;
    throw BadInput(fmt::format(
        "shard {} has no valid weight: it must be above 0 and finite, in every step", shard));
  }
  weights.total = total;
  return total;
}

bool StepRun::run(const Phase& phase, const GoesOn& goes_on) {
  updated_ = false;
  choose(phase);
  control::Faults& faults = control::Faults::here();
  faults.begin(phase.step);
  faults.strike("forward", phase.step);
  Weights weights = known_weights(phase);
  run_shards(phase, weights);
  faults.strike("backward", phase.step);
  const auto began = Clock::now();
  total_weight_ = exchange(weights);
  std::vector<optim::GradientSource> sources;
  for (ModelStep* const model : models_) {
    sources.push_back(model->gradients().finish(total_weight_));
    if (scaler() != nullptr) sources.back().scale = scaler()->scale();
    sources.back().measured = measures(phase.step);
  }
  if (!goes_on()) return false;
  faults.strike("reduce", phase.step);
  // A last backward that meets other workers measures its own waiting. Else all waiting is the time since it ended.
  const bool waits_here = std::any_of(models_.begin(), models_.end(),
                                      [](auto* model) { return !model->gradients().meets(); });
  exposed_ = waits_here ? Clock::now() - began : std::chrono::nanoseconds(0);
  for (ModelStep* const model : models_) exposed_ += model->gradients().exposed();
  exposed_ += runner_->waited();
  // Behind the seeds of shards.
  const int shards = loop_.generation().shards;
  const std::uint64_t seed =
      plan::shard_seed(loop_.plan().options().seed, phase.step, shards + 1, phase.number);
  run_seeded(seed, models_.front()->model().device(), [&] {
    if (core_.options.before_update) faults.strike("hook", phase.step);
    if (core_.options.before_update) core_.options.before_update(phase.step);
    end_buffers(phase);
    update(phase, sources);
  });
  end_shards();
  return true;
}

void StepRun::end_buffers(const Phase& phase) {
  const int shards = loop_.generation().shards;
  std::vector<int> ran;
  for (int shard = 0; shard < shards; ++shard) {
    if (samples_of(phase, shard) > 0) ran.push_back(shard);
  }
  for (const auto& buffers : loop_.buffers()) buffers->end_step(loop_.generation().control, ran);
}

// The order of the commit page: small values, intent, weights, commit. Workers that share memory meet in prepare(), so
// the small values of all of them are there before any of them writes a weight.
void StepRun::update(const Phase& phase, const std::vector<optim::GradientSource>& sources) {
  const CallName call(models_.front()->trained().model->identity().announcements->comm(),
                      call_of(core_, phase));
  CommitPage* const page = loop_.commit_page();
  std::vector<std::byte> buffers;
  if (page != nullptr) {
    buffers = loop_.packed_buffers();
    page->begin(phase.step, phase.number);
    page->put_small(losses_for(*page), buffers);
    control::Faults::here().strike("small", phase.step);
  }
  for (std::size_t i = 0; i < models_.size(); ++i) models_[i]->prepare(sources[i]);
  // One model that has overflowed is enough: a step changes all models or none.
  skips_ = std::any_of(models_.begin(), models_.end(),
                       [](const ModelStep* model) { return model->overflowed(); });
  if (page != nullptr) {
    page->intend(intent());
    control::Faults::here().strike("intent", phase.step);
  }
  flat::Note note = runner_->note();  // goes with the first update
  for (std::size_t i = 0; i < models_.size(); ++i) {
    const auto journal = page != nullptr ? page->journal(numbers_[i]) : nullptr;
    write(i, std::exchange(note, {}), journal.get());
  }
  if (page != nullptr) {
    page->commit(numbers_);
    control::Faults::here().strike("commit", phase.step);
    loop_.keep_buffers(std::move(buffers));
  }
  for (const ModelStep* const model : models_) exposed_ += model->waited();
  end_update();
  if (scaler() == nullptr || !skips_ || scaler()->scale() > kLeastScale) return;
  throw BadInput(fmt::format(
      "the gradients of step {} are not finite, though the loss is scaled by {:.1e} only: training "
      "has diverged; lower the learning rate or warm it up",
      phase.step, scaler()->scale()));
}

void StepRun::end_update() {
  updated_ = true;
  if (scaler() != nullptr) scaler()->update_after(skips_);
}

// A page must have the losses of all shards, so that the survivors know them if a whole host is lost. Workers that share
// one page put them together. Others tell each other. On GPUs this also means that the reduction has ended well on all of
// them, because each waits for its own before: only then may an update be queued behind it.
std::map<int, double> StepRun::losses_for(const CommitPage& page) const {
  Generation& generation = loop_.generation();
  auto losses = runner_->losses(Deadline::after(generation.control.timeout()));
  if (!generation.world.elastic() || page.has_all_of(generation.size())) return losses;
  std::vector<double> all(static_cast<std::size_t>(generation.shards));
  for (const auto& [shard, loss] : losses) all[static_cast<std::size_t>(shard)] = loss;
  Work exchange = generation.control.all_reduce({all.data(), all.size(), DType::kFloat64});
  control::Faults::here().strike("losses", control::Faults::here().step());
  exchange.wait();
  for (int shard = 0; shard < generation.shards; ++shard)
    losses[shard] = all[static_cast<std::size_t>(shard)];
  return losses;
}

namespace {

constexpr std::size_t kNumbersOfAll = 4;  // of an intent; then come those of each model

}  // namespace

// In the order of intent().
void StepRun::finish() {
  CommitPage& page = *loop_.commit_page();
  const std::vector<double> numbers = page.intent();
  std::span<const double> left = std::span(numbers).subspan(kNumbersOfAll);
  for (std::size_t i = 0; i < models_.size(); ++i) {
    const std::size_t rates = models_[i]->trained().groups.rates().size();
    const std::size_t trusts = models_[i]->trusts().size();
    const optim::UpdateNumbers known{left[0], numbers[1], left.subspan(2 + rates, trusts),
                                     numbers[2] != 0};
    left = left.subspan(2 + rates + trusts);
    models_[i]->finish(known, *page.journal(numbers_[i]));
  }
  page.commit(numbers_);
}

void StepRun::complete() {
  if (updated_) return;
  skips_ = loop_.commit_page()->intent()[2] != 0;
  for (ModelStep* const model : models_) model->complete(skips_);
  loop_.keep_buffers(loop_.packed_buffers());
  end_update();
  end_shards();
}

void StepRun::take_over(const Phase& phase) {
  choose(phase);
  CommitPage& page = *loop_.commit_page();
  const CommitPage::Fate fate = page.fate(phase.step, phase.number);
  const std::vector<double> numbers = page.intent();
  LOCKSTEP_CHECK(fate != CommitPage::Fate::kNothing && !numbers.empty(),
                 "a phase that is taken over has an intent");
  total_weight_ = numbers[0];
  if (scaler() != nullptr)
    scaler()->load_state({numbers[1], static_cast<std::int64_t>(numbers[3])});
  std::span<const double> left = std::span(numbers).subspan(kNumbersOfAll);
  for (ModelStep* const model : models_) {
    const std::size_t rates = model->trained().groups.rates().size();
    model->optimizer().set_steps(static_cast<std::int64_t>(left[1]));
    model->set_rates({left.begin() + 2, left.begin() + 2 + static_cast<std::ptrdiff_t>(rates)});
    left = left.subspan(2 + rates + model->trusts().size());
    if (fate == CommitPage::Fate::kCommitted) continue;
    optim::GradientSource source = model->gradients().source(total_weight_);
    if (scaler() != nullptr) source.scale = scaler()->scale();
    model->take_over(source);
  }
  if (fate == CommitPage::Fate::kIntended) finish();
  const auto buffers = page.last_buffers();
  loop_.keep_buffers({buffers.begin(), buffers.end()});
  loop_.restore_buffers();
  updated_ = false;
  complete();
}

void StepRun::write(std::size_t model, const flat::Note& note, optim::UpdateJournal* journal) {
  skips_ ? models_[model]->skip(note, journal) : models_[model]->apply(note, journal);
}

GradScaler* StepRun::scaler() const {
  GradScaler* const given = core_.options.scaler;
  return given != nullptr && given->options().enabled ? given : nullptr;
}

// With the gradients, the parameters and the state, these numbers decide what will be written.
std::vector<double> StepRun::intent() const {
  const bool scales = scaler() != nullptr;
  std::vector<double> numbers{total_weight_, scales ? scaler()->scale() : 1, skips_ ? 1.0 : 0.0,
                              scales ? static_cast<double>(scaler()->state().growth_tracker) : 0};
  for (const ModelStep* const model : models_) {
    numbers.push_back(model->clip_factor());
    numbers.push_back(static_cast<double>(model->trained().groups.steps()));
    const auto rates = model->trained().groups.rates();
    numbers.insert(numbers.end(), rates.begin(), rates.end());
    const auto trusts = model->trusts();
    numbers.insert(numbers.end(), trusts.begin(), trusts.end());
  }
  return numbers;
}

// The shards of this worker in one phase.
class StepRun::PhaseTurns : public Turns {
 public:
  PhaseTurns(StepRun& run, const Phase& phase, Weights& weights)
      : run_(run), phase_(phase), weights_(weights), generation_(run.loop_.generation()) {
    for (ModelStep* const model : run_.models_) {
      if (run_.measures(phase_.step)) measured_.push_back(model->measure());
    }
  }

  plan::ShardRange hosted() const override { return generation_.hosted; }
  bool everywhere() const override;
  std::int64_t steps() const override { return phase_.steps; }
  std::int64_t first_step() const override { return phase_.step; }
  const std::vector<ModelStep*>& models() const override { return run_.models_; }
  int exchanged() const override { return run_.loop_.exchanged(phase_.step); }
  Turn take(int shard, std::int64_t step) override;
  std::int64_t samples(int shard, std::int64_t step) const override {
    return run_.loop_.plan().count(phase_.step + step, shard);
  }
  Turn whole(int shard) override;
  void before_forward() override {
    for (const auto& buffers : run_.loop_.buffers()) buffers->begin_shard();
  }
  void forward_done(const Turn& turn) override {
    for (const auto& buffers : run_.loop_.buffers()) buffers->end_shard(turn.shard.index);
  }
  void before_backward(const Turn& turn) override;
  void all_given() override;
  void ended() override;

 private:
  // The shard whose gradients are measured.
  struct Backward {
    int shard = 0;
    double factor = 1;  // what its gradients were multiplied by
  };
  // A fragment that is exchanged while shards train is waited for when they have.
  StepGradients::Waits waits() const {
    using Waits = StepGradients::Waits;
    return exchanged() == LocalModel::kAll ? Waits::kAtEnd : Waits::kInComplete;
  }
  StepRun& run_;
  const Phase& phase_;
  Weights& weights_;
  const Generation& generation_;
  bool reduces_ = false;  // somebody has said who reduces
  std::vector<std::unique_ptr<replica::MeasuredPass>>
      measured_;  // by model; empty: none is measured
  Backward backward_;
};

bool StepRun::PhaseTurns::everywhere() const {
  for (int rank = 0; rank < generation_.size(); ++rank) {
    const auto hosted = plan::hosted_shards(rank, generation_.size(), generation_.shards);
    if (run_.loop_.plan().count(phase_.step, hosted.begin) == 0) return false;
  }
  return true;
}

Turn StepRun::PhaseTurns::take(int index, std::int64_t of_round) {
  const std::int64_t step = phase_.step + of_round;
  Turn turn;
  turn.shard = {.batch = run_.loop_.batches().take(step, index),
                .step = step,
                .epoch = run_.loop_.plan().position(step).epoch,
                .index = index,
                .count = generation_.shards,
                .phase = phase_.number};
  turn.seed = plan::shard_seed(run_.loop_.plan().options().seed, step, index, phase_.number);
  if (turn.shard.batch.samples == 0) return turn;
  double& weight = weights_.by_shard[static_cast<std::size_t>(index)];
  if (run_.core_.options.weight) weight = run_.core_.options.weight(turn.shard);
  if (!(weight > 0) || !std::isfinite(weight)) weight = std::nan("");
  turn.weight = weight;
  if (run_.scaler() != nullptr) turn.scale = run_.scaler()->scale();
  turn.measured = !measured_.empty();
  return turn;
}

Turn StepRun::PhaseTurns::whole(int index) {
  Turn turn;
  turn.shard = {.step = phase_.step, .epoch = phase_.epoch, .index = index};
  turn.shard.batch.samples = run_.samples_of(phase_, index);
  turn.weight = weights_.by_shard[static_cast<std::size_t>(index)];
  return turn;
}

// The last backward reduces, if any does.
void StepRun::PhaseTurns::before_backward(const Turn& turn) {
  const int number = turn.shard.index - generation_.hosted.begin;
  const auto& planned = generation_.mine().steps[static_cast<std::size_t>(number)];
  const bool last = turn.shard.index + 1 == hosted().end && turn.shard.batch.samples > 0;
  for (ModelStep* const model : run_.models_) model->gradients().begin_shard(planned);
  for (ModelStep* const model : run_.models_) {
    if (last && model->gradients().meets())
      model->gradients().before_last(run_.exchange(weights_), waits());
  }
  reduces_ |= last;
  backward_ = {turn.shard.index, turn.weight * turn.scale};
  for (const auto& pass : measured_) pass->start();
}

// In a short batch the last shard may have no samples and no backward: then the reduction comes after its turn, because
// only then are the banks complete.
void StepRun::PhaseTurns::all_given() {
  if (std::exchange(reduces_, true)) return;
  for (ModelStep* const model : run_.models_) {
    if (model->gradients().meets()) model->gradients().reduce(run_.exchange(weights_), waits());
  }
}

void StepRun::PhaseTurns::ended() {
  for (const auto& pass : measured_) {
    const double factor = backward_.factor;
    run_.squares_[backward_.shard].push_back(pass->squares() / factor / factor);
  }
  run_.loop_.batches().look_ahead();
}

void StepRun::run_shards(const Phase& phase, Weights& weights) {
  for (const auto& buffers : loop_.buffers()) buffers->begin_step();
  forget_cast_weights();
  runner_->begin_step();
  squares_.clear();
  PhaseTurns turns(*this, phase, weights);
  runner_->run(turns);
  turns.all_given();
}

// Weights have changed: what autocast has cast of the old ones is not for an evaluation.
void StepRun::end_shards() {
  runner_->end_step();
  forget_cast_weights();
}

// The names that a shard of any worker has reported in the first call. A round that goes on may have no task left to report
// anything.
void StepRun::agree_on_metrics() {
  std::set<std::string> names = core_.metrics_before;
  names.insert(runner_->metrics().begin(), runner_->metrics().end());
  const std::string mine = fmt::format("{}", fmt::join(names, "\n"));
  for (const std::string& theirs : control::gather_text(loop_.generation().control, mine)) {
    std::istringstream lines(theirs);
    for (std::string name; std::getline(lines, name);) names.insert(name);
  }
  core_.metrics.emplace(names.begin(), names.end());
  core_.metrics_before = std::move(names);
}

// A function of the plan: a step needs all of its shards that have samples, but so many, and one at least.
double StepRun::dropped(const Phase& phase) const {
  const auto& rule = loop_.local_steps().asynchronous;
  if (!rule || rule->backups == 0) return 0;
  std::int64_t all = 0;
  std::int64_t counted = 0;
  for (std::int64_t step = phase.step; step < phase.step + phase.steps; ++step) {
    std::int64_t tasks = 0;
    for (int shard = 0; shard < loop_.generation().shards; ++shard)
      tasks += loop_.plan().count(step, shard) > 0 ? 1 : 0;
    all += tasks;
    counted += std::max<std::int64_t>(tasks - rule->backups, 1);
  }
  return static_cast<double>(all - counted) / static_cast<double>(all);
}

PhaseResult::About StepRun::about(const Phase& phase) const {
  return {.name = core_.name,
          .step = phase.step,
          .phase = phase.number,
          .steps = phase.steps,
          .lr = given().front()->lr(),
          .skipped = skips_,
          .dropped = dropped(phase),
          .shards = loop_.generation().shards,
          .total_weight = total_weight_,
          .models = checks_.size(),
          .names = core_.metrics.value_or(std::vector<std::string>()),
          .noise = core_.noise};
}

std::shared_ptr<PhaseResult> StepRun::result(const Phase& phase, Comm& channel,
                                             PhaseResult::Asks asks) {
  if (!core_.metrics) agree_on_metrics();
  PhaseResult::About about = this->about(phase);
  if (measures(phase.step) && !skips_) {
    about.measured = {.samples = loop_.plan().count(phase.step, 0), .of_batch = {}};
    for (const ModelStep* const model : models_) {
      const double norm = model->measured_norm();
      about.measured->of_batch.push_back(norm * norm);
    }
  }
  const auto start = [&channel, asks, name = call_of(core_, phase), step = phase.step,
                      checks = checks_,
                      squares = squares_](PhaseResult& result, PhaseResult::Local local) {
    const CallName call(channel, name);
    local.squares = squares;
    for (divergence::Check* const check : checks) local.digests.push_back(check->digest(step));
    local.asks = asks;
    result.start(channel, local);
  };
  // The program may ask for the loss after the loop has ended, and then the runner is gone.
  const auto bring = [start, &channel, runner = std::weak_ptr(runner_)](PhaseResult& result) {
    const auto still_there = runner.lock();
    if (!still_there)
      throw BadInput(
          "the loop was left before the numbers of its last step had come: they are lost");
    start(result, still_there->bring(Deadline::after(channel.timeout())));
  };
  auto result = std::make_shared<PhaseResult>(std::move(about), bring);
  if (const auto known = runner_->known()) start(*result, *known);
  return result;
}

std::vector<optim::Optimizer*> StepRun::given() const {
  if (core_.locals.empty()) return core_.optimizers;
  std::vector<optim::Optimizer*> all;
  for (const auto& local : core_.locals) all.push_back(&local->inner());
  return all;
}

std::vector<double> StepRun::rates() const {
  std::vector<double> all;
  for (const optim::Optimizer* const optimizer : given()) {
    const auto rates = optimizer->rates();
    all.insert(all.end(), rates.begin(), rates.end());
  }
  return all;
}

void StepRun::set_rates(const std::vector<double>& rates) {
  auto next = rates.begin();
  for (optim::Optimizer* const optimizer : given()) {
    optim::Optimizer::Impl& parts = optim::inside(*optimizer);
    for (std::size_t rule = 0; rule < parts.trained.groups.count(); ++rule)
      parts.set_rate(rule, *next++);
  }
}

}  // namespace lockstep::steps

#include <lockstep/errors.h>
#include <lockstep/job.h>
#include <lockstep/step.h>

#include <utility>

#include "torch/replica/tensors.h"
#include "torch/step/arithmetic.h"
#include "torch/step/job_core.h"

namespace lockstep {

Batches::Batches(std::shared_ptr<steps::Loop> loop) : loop_(std::move(loop)) {}
Batches::Batches(Batches&&) noexcept = default;
Batches::~Batches() = default;

const GlobalBatch& Batches::current() const {
  return loop_->current();
}
bool Batches::first() {
  return loop_->first();
}
bool Batches::advance() {
  bool more = false;
  steps::in_plain_words([&] { more = loop_->advance(); });
  return more;
}

Job::Job(World& world, const JobOptions& options)
    : core_(steps::JobCore::make(world, steps::JobSetup{.options = options})) {}
Job::~Job() = default;

// NOLINTNEXTLINE(performance-unnecessary-value-param): it is the caller's to give away, as elsewhere
Batches Job::batches(DatasetPtr dataset, const BatchesOptions& options) {
  if (dataset == nullptr) throw BadInput("batches() wants a data set");
  if ((options.steps > 0) == (options.epochs > 0))
    throw BadInput("batches() wants either steps or epochs, of the whole job");
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  if (options.steps > kMost || options.epochs > kMost)
    throw BadInput("batches() wants fewer steps: 2^40 are more than any job runs");
  if (options.loader_threads < 0 || options.prefetch < 0)
    throw BadInput("loader_threads and prefetch of batches() are 0 or more");
  core_->prepare(dataset, options);
  return Batches(core_->open(dataset, options));
}

Evaluation Job::evaluate(const DatasetPtr& dataset,
                         const std::function<Score(const Batch&)>& score) {
  if (dataset == nullptr || !score) throw BadInput("evaluate() wants a data set and a score");
  return core_->evaluate(*dataset, score, core_->modules());
}

void Job::save() {
  if (core_->options().checkpoint.empty())
    throw BadInput("the job has no directory to save to: name one in JobOptions::checkpoint");
  if (!core_->is_prepared())
    throw BadInput("save() comes after batches(), which says what the job's data is");
  core_->save();
}

void Job::keep(const std::string& name, const torch::Tensor& tensor) {
  core_->keep(name, tensor);
}
void Job::keep(const std::string& name, ReduceLROnPlateau& plateau) {
  core_->keep(name, plateau);
}

void Job::rebind(World& world) {
  // A copy: move_to() calls the job's rebind(), which replaces the generation that holds it.
  const auto inventory = core_->generation().inventory;
  inventory->move_to(world);
}

void Job::request_stop() noexcept {
  core_->request_stop();
}
bool Job::stopped() const {
  return core_->stopped();
}
int Job::shards() const {
  return core_->options().shards;
}
std::int64_t Job::step() const {
  return core_->position();
}
std::int64_t Job::steps_per_epoch() const {
  return core_->is_prepared() ? core_->plan().steps_per_epoch() : 0;
}
std::string Job::weights_sha256() const {
  return replica::digest(core_->models().named_state().weights());
}

Step::Step(Job& job, const std::string& name, const std::vector<optim::Optimizer*>& optimizers,
           Loss loss, StepOptions options)
    : job_(job.core_),
      core_(&job_->add_step(std::make_unique<steps::StepCore>(
          steps::StepCore{name, optimizers, std::move(loss), std::move(options)}))) {}
Step::~Step() = default;

Outcome Step::operator()(const GlobalBatch& batch) {
  const steps::JobCore::Ran ran = job_->run(*core_, batch);
  Outcome outcome(ran.result);
  outcome.step = ran.phase.step;
  outcome.phase = ran.phase.number;
  outcome.skipped = ran.result == nullptr || ran.result->about().skipped;
  outcome.dropped = ran.result == nullptr ? 0 : ran.result->about().dropped;
  return outcome;
}

const std::string& Step::name() const {
  return core_->name;
}

Outcome::Outcome(std::shared_ptr<steps::PhaseResult> result) : result_(std::move(result)) {}

double Outcome::loss() const {
  if (!result_) throw BadInput("a step that was skipped has no loss");
  result_->await();
  return result_->loss();
}

double Outcome::metric(const std::string& name) const {
  if (!result_) throw BadInput("a step that was skipped has no metrics");
  result_->await();
  return result_->metric(name);
}

NoiseScale Outcome::noise_scale(std::size_t optimizer) const {
  if (!result_) throw BadInput("a step that was skipped has no noise scale");
  result_->await();
  if (optimizer < result_->noise().size()) return result_->noise()[optimizer];
  throw BadInput(
      "the noise scale is not measured for this optimizer: set StepOptions::noise_scale_every");
}

namespace {

steps::Reports& reports_of(const Shard& shard) {
  if (shard.reports == nullptr) throw BadInput("Shard::report() is for the loss of a Step");
  return *shard.reports;
}

}  // namespace

void Shard::report(const std::string& name, const torch::Tensor& sum) const {
  const auto options = sum.options().dtype(torch::kFloat64).requires_grad(false);
  report(name, sum, torch::full({}, static_cast<double>(batch.samples), options));
}
void Shard::report(const std::string& name, const torch::Tensor& sum,
                   const torch::Tensor& weight) const {
  reports_of(*this).add(name, sum, weight);
}
void Shard::report(const std::string& name, double sum, double weight) const {
  reports_of(*this).add(name, sum, weight);
}

}  // namespace lockstep

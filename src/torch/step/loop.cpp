#include "torch/step/loop.h"

#include <lockstep/errors.h>

#include <algorithm>

#include "base/check.h"
#include "base/hash.h"
#include "control/faults.h"
#include "torch/replica/tensors.h"
#include "torch/step/job_core.h"

namespace lockstep {

Batch GlobalBatch::shard(int index, std::int64_t number) const {
  const auto loop = loop_.lock();
  if (!loop || !loop->batches().is_open())
    throw BadInput("a GlobalBatch can be read only in the loop that gave it");
  if (index < 0 || index >= loop->generation().shards)
    throw BadInput("a GlobalBatch was asked for a shard that the job does not have");
  if (number < 0 || number >= steps_)
    throw BadInput("a GlobalBatch was asked for a step that it does not have");
  return loop->batches().again(step_ + number, index);
}

}  // namespace lockstep

namespace lockstep::steps {

// A reader only numbers its batches: step and shard follow from the number.
void HostedBatches::open(StepRange steps) {
  close();
  const auto samples = [this, steps](std::int64_t number) {
    const auto [step, shard] = source_.rounds.batch(number, steps, hosted_);
    control::Faults::here().strike("read", step);
    return samples_.of(step, shard);
  };
  const std::int64_t batches = reads_ahead() ? steps.size() * hosted_.size() : 0;
  reader_.emplace(source_.dataset, batches, samples, source_.prefetch, source_.device);
  next_ = in_round();
  kept_.clear();
}

Batch HostedBatches::next() {
  auto batch = reader_->next();
  LOCKSTEP_CHECK(batch.has_value(), "a loop takes the batches that it was opened for");
  return std::move(*batch);
}

void HostedBatches::begin(StepRange round) {
  round_ = round;
  next_ = 0;
  kept_.clear();
}

Batch HostedBatches::take(std::int64_t step, int shard) {
  if (!reads_ahead()) {
    control::Faults::here().strike("read", step);
    return again(step, shard);
  }
  const std::int64_t number = (shard - hosted_.begin) * round_.size() + step - round_.first;
  if (number >= next_) {
    LOCKSTEP_CHECK(number == next_, "batches of a round are taken in order");
    ++next_;
    Batch batch = next();
    if (taken_ == Taken::kKept) kept_[number] = batch;
    return batch;
  }
  const auto kept = kept_.find(number);
  return kept == kept_.end() ? again(step, shard) : kept->second;
}

void HostedBatches::end() {
  for (; reads_ahead() && next_ < in_round(); ++next_) next();
  kept_.clear();
}

Loop::Loop(std::shared_ptr<JobCore> job, DatasetPtr dataset, const BatchesOptions& options)
    : job_(std::move(job)),
      source_{std::move(dataset),
              job_->data_.streams
                  ? data::in_order({options.loader_threads, options.prefetch})
                  : data::PrefetchOptions{options.loader_threads, options.prefetch}} {
  open();
  job_->progress_.loop = this;
}

void Loop::open() {
  stream_ = std::make_unique<StreamOfModels>(job_->models_.with_inner());
  batches_ = std::make_unique<HostedBatches>(
      job_->generation_.hosted,
      job_->steps_.size() > 1 ? HostedBatches::Taken::kKept : HostedBatches::Taken::kDropped,
      HostedBatches::Source{source_.dataset, plan().options(),
                            plan::Rounds(job_->options().local_steps), source_.prefetch,
                            models().front().device(),
                            local_steps().asynchronous ? HostedBatches::Ahead::kNothing
                                                       : HostedBatches::Ahead::kHosted});
  open_models();
  open_page();
}

void Loop::close() noexcept {
  batches_.reset();
  runs_.clear();
  buffers_.of_shards.clear();
  commit_page_.reset();
  trained_.clear();
  stream_.reset();
}

void Loop::reopen(std::int64_t step) {
  open();
  batches_->open({step, end_});
  batches_->begin(round_at(step));
}

const LocalSteps& Loop::local_steps() const {
  return job_->options().local_steps;
}

std::string Loop::job_digest() const {
  constexpr std::size_t kDigits = 16;
  std::string all;
  for (const auto& [name, value] : job_->hashed_properties()) all += name + "\t" + value + "\n";
  return base::to_hex(base::sha256(all)).substr(0, kDigits);
}

StepRange Loop::round_at(std::int64_t step) const {
  return {step, std::min(plan::Rounds(job_->options().local_steps).end(step), end_)};
}

int Loop::exchanged(std::int64_t step) const {
  const bool is_last = round_at(step).end == end_;
  if (!local_steps().streaming || is_last) return LocalModel::kAll;
  return plan::Rounds(local_steps()).fragment(step);
}

void Loop::keep_buffers(std::vector<std::byte> packed) {
  buffers_.at_rest = std::move(packed);
  buffers_.kept.clear();
  for (const ModelView& model : models()) {
    if (const torch::Tensor bytes = model.buffer_bytes(); bytes.defined())
      buffers_.kept.push_back(bytes.clone());
  }
}

void Loop::restore_buffers() {
  auto kept = buffers_.kept.begin();
  std::size_t first = 0;
  for (const ModelView& model : models()) {
    if (torch::Tensor bytes = model.buffer_bytes(); bytes.defined()) {
      bytes.copy_(*kept++);
      continue;
    }
    if (!on_host(model)) continue;
    const std::size_t bytes = replica::pack(model.buffers()).size();
    const auto begin = buffers_.at_rest.begin() + static_cast<std::ptrdiff_t>(first);
    replica::unpack({begin, begin + static_cast<std::ptrdiff_t>(bytes)}, model.buffers());
    first += bytes;
  }
}

void Loop::open_models() {
  const JobOptions& options = job_->options();
  for (const JobModels::Trained& one : job_->models_.trained) {
    trained_.push_back(std::make_unique<Trained>(
        *one.optimizer, job_->generation_,
        ModelStep::Options{.with_parity = options.check_divergence,
                           .averages = one.averages ? Averages::kInGrad : Averages::kAnywhere}));
  }
  for (const ModelView& model : models())
    buffers_.of_shards.push_back(make_shard_buffers(model, {options.buffers, options.shards}));
  for (const auto& step : job_->steps_) runs_.push_back(std::make_unique<StepRun>(*step, *this));
}

// On a GPU nobody else can finish an update, and nothing of it is on the page but its numbers.
void Loop::open_page() {
  const bool elastic = generation().world.elastic();
  const bool here = on_host(models().front());
  if (!here && !elastic) return;
  CommitPage::Shape shape{.shards = generation().shards, .buffer_bytes = packed_buffers().size()};
  for (const auto& one : trained_) {
    // Only where somebody can finish an update.
    if (elastic && here)
      shape.memories = std::max(shape.memories, 1 + one->step.trained().state.memories().size());
    shape.pieces.push_back(here ? one->step.trained().model->pieces().all.size() : 0);
    shape.rates += one->step.trained().groups.count();
    shape.trusts += one->step.trusts().size();
  }
  shape.one_each = !here || own_weights() == OwnWeights::kAll;
  keep_buffers(packed_buffers());
  commit_page_ = make_commit_page(generation().control, shape);
  job_->leave_memory(*this);
}

Loop::OwnWeights Loop::own_weights() const {
  const auto own = std::count_if(trained_.begin(), trained_.end(),
                                 [](const auto& one) { return one->step.has_own_weights(); });
  if (own == 0) return OwnWeights::kNone;
  return own == static_cast<std::ptrdiff_t>(trained_.size()) ? OwnWeights::kAll : OwnWeights::kSome;
}

std::size_t Loop::number_of(const optim::Optimizer& optimizer) const {
  const auto found = std::find_if(trained_.begin(), trained_.end(), [&](const auto& one) {
    return &one->step.optimizer() == &optimizer;
  });
  LOCKSTEP_CHECK(found != trained_.end(), "a Step's optimizers are the job's");
  return static_cast<std::size_t>(found - trained_.begin());
}

std::vector<std::byte> Loop::packed_buffers() const {
  std::vector<std::byte> all;
  for (const ModelView& model : models()) {
    if (!on_host(model)) continue;
    const auto bytes = replica::pack(model.buffers());
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

Loop::~Loop() {
  if (job_->progress_.loop == this) job_->leave(*this);
}

Generation& Loop::generation() {
  return job_->generation_;
}
const plan::Batches& Loop::plan() const {
  return job_->plan();
}
const std::vector<ModelView>& Loop::models() const {
  return job_->models_.all;
}

StepRun& Loop::run_of(const StepCore& step) {
  const auto found = std::find_if(runs_.begin(), runs_.end(),
                                  [&](const auto& run) { return &run->core() == &step; });
  LOCKSTEP_CHECK(found != runs_.end(), "a Step is of the job whose batch it was given");
  return **found;
}

void Loop::check_at_rest(std::int64_t step) {
  for (const auto& one : trained_) {
    if (one->check) one->check->check_at_rest(step);
  }
}

void Loop::go_to(std::int64_t step) {
  const StepRange round = round_at(step);
  current_.loop_ = weak_from_this();
  current_.step_ = step;
  current_.steps_ = round.size();
  current_.samples_ = 0;
  for (std::int64_t each = step; each < round.end; ++each)
    current_.samples_ += plan().position(each).entries;
  const std::int64_t ended = round.end / plan().steps_per_epoch();
  current_.ends_epoch_ = ended > step / plan().steps_per_epoch();
  current_.epoch_ = current_.ends_epoch_ ? ended - 1 : step / plan().steps_per_epoch();
  phases_ = 0;
  batches_->begin(round);
}

bool Loop::first() {
  if (batches_->is_open())
    throw BadInput("a loop over batches() begins once: call batches() again");
  batches_->open({job_->progress_.next, end_});
  return go_on();
}

bool Loop::advance() {
  batches_->end();
  job_->end_batch();
  phases_ = 0;
  return go_on();
}

bool Loop::go_on() {
  if (job_->progress_.next < end_ && !job_->progress_.asked.stop) {
    go_to(job_->progress_.next);
    return true;
  }
  batches_->close();
  job_->end_loop();
  return false;
}

Phase Loop::next_phase() {
  return {current_.step_, current_.epoch_, phases_++, current_.steps_};
}

void Loop::go_back(StepRange steps) {
  batches_->open(steps);
  current_.step_ = steps.first - 1;
  current_.steps_ = 1;
}

void Loop::rerun_to(std::int64_t step) {
  while (current_.step_ < step) {
    batches_->end();
    go_to(current_.step_ + current_.steps_);
  }
}

}  // namespace lockstep::steps

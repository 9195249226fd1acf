#include "torch/replica/replicated.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "base/check.h"
#include "comm/core/tree_sum.h"
#include "torch/replica/agreement.h"
#include "torch/replica/tensors.h"

namespace lockstep::replica {
namespace {

thread_local std::optional<double> current_weight;

plan::Layout layout_of(const std::vector<NamedTensor>& trained) {
  std::vector<plan::Parameter> parameters;
  parameters.reserve(trained.size());
  for (const auto& [name, tensor] : trained) {
    parameters.push_back(
        {name, reducible_dtype(tensor, name), static_cast<std::size_t>(tensor.numel())});
  }
  return plan::Layout(parameters);
}

// The same entries in the types in which they are added up; nothing if all of them are.
std::optional<plan::Layout> layout_of_sums(const plan::Layout& layout) {
  std::vector<plan::Parameter> parameters(layout.entries().size());
  bool differs = false;
  for (const plan::Entry& entry : layout.entries()) {
    parameters[entry.registered] = {entry.name, comm::sum_type(entry.dtype), entry.count};
    differs = differs || comm::is_half(entry.dtype);
  }
  return differs ? std::optional(plan::Layout(parameters)) : std::nullopt;
}

bool in_one_pass(const FlatMemory& gradients, Algorithm algorithm) {
  return gradients.shared() &&
         (algorithm == Algorithm::kAutomatic || algorithm == Algorithm::kDirect);
}

// In one pass all gradients of one type are reduced at once.
plan::BucketOptions bucket_limits(const DataParallelOptions& options, const FlatMemory& gradients) {
  if (in_one_pass(gradients, options.algorithm)) return {SIZE_MAX, SIZE_MAX};
  return {std::min(options.first_bucket_bytes, options.bucket_bytes), options.bucket_bytes};
}

}  // namespace

WeightScope::WeightScope(double weight) : outer_(current_weight) {
  current_weight = weight;
}
WeightScope::~WeightScope() {
  current_weight = outer_;
}
std::optional<double> WeightScope::current() {
  return current_weight;
}

// Says that the gradient of one entry has been accumulated.
class Replicated::Hook : public torch::autograd::FunctionPostHook {
 public:
  Hook(std::weak_ptr<Replicated> owner, std::size_t entry)
      : owner_(std::move(owner)), entry_(entry) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    if (const auto owner = owner_.lock()) owner->gradient_ready(entry_);
    return outputs;
  }

 private:
  std::weak_ptr<Replicated> owner_;
  std::size_t entry_;
};

std::shared_ptr<Replicated> Replicated::make(Comm comm, std::vector<NamedTensor> parameters,
                                             std::vector<NamedTensor> buffers,
                                             const DataParallelOptions& options) {
  Model model = sort_tensors(std::move(parameters), std::move(buffers));
  agree_on_model(comm, model, options);
  copy_from_leader(comm, model.everything());
  const plan::Layout layout = layout_of(model.trained);
  FlatParameters flat(comm, model.trained, layout,
                      options.share_parameters ? Copies::kPerHost : Copies::kPerWorker);
  FlatMemory gradients(comm, layout.bytes(), Copies::kPerWorker);
  std::shared_ptr<Replicated> replica(new Replicated(
      std::move(comm), std::move(model), std::move(flat), std::move(gradients), options));
  replica->install_hooks();
  return replica;
}

Replicated::Replicated(Comm comm, Model model, FlatParameters parameters, FlatMemory gradients,
                       const DataParallelOptions& options)
    : options_(options),
      model_(std::move(model)),
      layout_(layout_of(model_.trained)),
      pieces_(plan::plan_pieces(layout_, gradients.shared() ? comm.size() : 1)),
      buckets_(plan::plan_buckets(layout_, bucket_limits(options, gradients))),
      parameters_(std::move(parameters)),
      ledger_(layout_, buckets_),
      buffer_sync_(model_.buffers),
      comm_(std::move(comm)) {
  syncs_buffers_ = options.buffers == BufferSource::kLeader;
  banks_.emplace_back(model_.trained, layout_, std::move(gradients));
  banks_.front().settle();
  forget();
}

void Replicated::make_banks(int count, BankHolds holds) {
  auto wide = holds == BankHolds::kSums ? layout_of_sums(layout_) : std::nullopt;
  if (wide.has_value() != wide_.has_value()) {
    use_gradients();
    banks_.erase(banks_.begin() + 1, banks_.end());
    wide_ = std::move(wide);
  }
  while (banks_.size() < place_of(count)) {
    FlatMemory memory(comm_, bank_layout().bytes(), Copies::kPerWorker);
    banks_.emplace_back(model_.trained, bank_layout(), std::move(memory));
  }
}

void Replicated::use_place(std::size_t place) {
  const bool watched = banks_[place].watched();
  if (bank_in_use_ == place && !watched) return;
  banks_[bank_in_use_].settle();
  bank_in_use_ = place;
  if (watched) {
    banks_[place].hide();
  } else {
    banks_[place].attach();
  }
}

void Replicated::use_bank(int bank) {
  use_place(place_of(bank));
}

void Replicated::use_gradients() {
  use_place(0);
}

void Replicated::use_averages() {
  use_gradients();
  if (wide_) banks_.front().take(banks_[place_of(0)]);
}

void Replicated::watch_gradients() {
  LOCKSTEP_CHECK(reads_all_gradients(), "gradients are watched where all are read");
  for (std::size_t place = place_of(0); place < banks_.size(); ++place) {
    FlatMemory parities(comm_, pieces_.all.size() * sizeof(comm::Parity), Copies::kPerWorker);
    banks_[place].watch(std::move(parities), pieces_, faults_, comm_.rank());
  }
}

void Replicated::unwatch_gradients() {
  for (FlatGradients& bank : banks_) bank.unwatch();
}

void Replicated::begin_bank(int bank) {
  use_bank(bank);
  banks_[bank_in_use_].clear();
}

void Replicated::settle() {
  check_attached();
  banks_[bank_in_use_].settle();
}

void Replicated::add_banks(int into, int from) {
  if (watches_gradients()) return banks_[place_of(into)].add(banks_[place_of(from)]);
  for (const plan::Bucket& bucket : buckets_) {
    const Buffer left = banks_[place_of(into)].bucket(bucket);
    const Buffer right = banks_[place_of(from)].bucket(bucket);
    comm::combine(left.dtype, ReduceOp::kSum, left.data, right.data, left.data, left.count);
  }
}

// After a synchronisation nothing has been added up.
void Replicated::forget() {
  since_.weights = {};
  since_.reached.assign(layout_.entries().size(), false);
}

void Replicated::install_hooks() {
  for (std::size_t i = 0; i < layout_.entries().size(); ++i) {
    const torch::Tensor& parameter = model_.trained[layout_.entries()[i].registered].tensor;
    auto node = torch::autograd::impl::grad_accumulator(parameter);
    node->add_post_hook(std::make_unique<Hook>(weak_from_this(), i));
    accumulators_.push_back(std::move(node));  // the parameter itself holds it only weakly
  }
}

void Replicated::gradient_ready(std::size_t entry) {
  if (!pass_.active) {
    torch::autograd::Engine::get_default_engine().queue_callback(
        [self = shared_from_this()] { self->end_pass(); });
    begin_pass(suspended_ == 0);
    add_weight();
  }
  banks_[bank_in_use_].adopt(entry);
  if (!ledger_.mark(entry)) {
    throw BadInput(fmt::format(
        "the gradient of {} arrived twice in one backward pass: an earlier pass was broken off "
        "(call zero_grad() after catching its error), or part of the model runs its own backward "
        "inside this one",
        layout_.entries()[entry].name));
  }
  since_.reached[entry] = true;
  if (pass_.synchronised) launch_ready();
  if (ledger_.complete() && pass_.synchronised) pass_.times.last_gradient = since_begin();
}

void Replicated::begin_pass(bool synchronised) {
  ledger_.begin();
  const BackwardTimes last = pass_.times;
  pass_ = {};
  pass_.active = true;
  pass_.synchronised = synchronised;
  pass_.began = Clock::now();
  if (!synchronised) pass_.times = last;
}

void Replicated::add_weight() {
  const auto weight = WeightScope::current();
  since_.weights[0] += weight.value_or(0);
  since_.weights[weight ? 1 : 2] += 1;
}

bool Replicated::reads_all_gradients() const {
  return in_one_pass(gradients(), options_.algorithm);
}

// Workers in shared memory wait for the end of backward: its last gradients come from the same cores.
void Replicated::launch_ready() {
  if (reads_all_gradients()) return;
  while (true) {
    const auto divisor = known_divisor();
    const auto bucket = divisor ? ledger_.next_ready() : std::nullopt;
    if (!bucket) return;
    launch(*bucket, 1 / *divisor);
  }
}

// What this worker has added up is known before its first bucket is.
void Replicated::launch_weights() {
  if (divisor_ || std::exchange(pass_.weights_launched, true)) return;
  pass_.plain = since_.weights[2] > 0;
  pass_.weights = comm_.all_reduce({since_.weights.data(), since_.weights.size(), DType::kFloat64});
}

// What the sum will be divided by, if it is known yet. A worker whose passes were plain takes the others' for plain,
// too; when they were not, all find out in check_weights().
std::optional<double> Replicated::known_divisor() {
  launch_weights();
  if (divisor_) return divisor_;
  if (pass_.plain) return comm_.size();
  return pass_.weights.done() ? std::optional(divisor()) : std::nullopt;
}

void Replicated::launch(std::size_t bucket, double factor) {
  BackwardTimes& times = pass_.times;
  if (pass_.works.empty()) times.first_launch = since_begin();
  if (!ledger_.complete()) ++times.launched_before_end;
  ++times.buckets;
  pass_.works.push_back(
      reduce(buckets_[bucket], {.factor = factor, .algorithm = options_.algorithm}));
}

// With several shards the sums that this worker may compute are computed here, bucket by bucket: all banks but the one
// in use are complete, and of that one this bucket is.
Work Replicated::reduce(const plan::Bucket& bucket, const ReduceOptions& options) {
  if (!sharded_) return comm_.all_reduce(banks_.front().bucket(bucket), options);
  std::vector<Buffer> partials;
  std::size_t next = 0;
  for (const plan::Reduction& partial : sharded_->partials) {
    std::vector<const void*> operands;
    for (std::size_t i = 0; i < partial.operands.size(); ++i) {
      const Buffer operand = banks_[place_of(sharded_->held[next++])].bucket(bucket);
      operands.push_back(operand.data);
      if (i == 0) partials.push_back(operand);
    }
    const Buffer& sum = partials.back();
    comm::TreeSum(partial, comm::Fold{sum.dtype}).run(operands, sum.data, sum.count);
  }
  return comm_.reduce(std::move(partials), sharded_->shards, banks_[place_of(0)].bucket(bucket),
                      options);
}

void Replicated::end_pass() {
  if (pass_.synchronised) {
    if (pass_.times.last_gradient.count() == 0) pass_.times.last_gradient = since_begin();
    check_complete();
    finish();
  }
  pass_.active = false;
}

void Replicated::check_complete() const {
  for (const auto& [name, tensor] : model_.parameters) {
    const bool is_trained = std::any_of(model_.trained.begin(), model_.trained.end(),
                                        [&](const auto& other) { return other.name == name; });
    if (!is_trained && tensor.requires_grad()) {
      throw BadInput(fmt::format(
          "parameter {} was frozen when the model was replicated and wants gradients now: call "
          "data_parallel() after unfreezing",
          name));
    }
  }
  if (options_.missing_gradient == MissingGradient::kZero) return;
  std::vector<std::string> names;
  for (std::size_t entry = since_.reached.size(); entry-- > 0;) {  // as the model registers them
    if (!since_.reached[entry]) names.push_back(layout_.entries()[entry].name);
  }
  if (names.empty()) return;
  throw BadInput(fmt::format(
      "no gradient for {}: the loss did not depend on it; use it in forward(), freeze it, or set "
      "missing_gradient = MissingGradient::kZero",
      fmt::join(names, ", ")));
}

void Replicated::finish() {
  banks_[bank_in_use_].settle();
  launch_weights();
  const bool with_buffers = syncs_buffers_;
  const double divided_by = divisor();
  for (std::size_t bucket = pass_.works.size(); bucket < buckets_.size(); ++bucket)
    launch(bucket, 1 / divided_by);
  if (with_buffers) buffer_sync_.start(comm_);
  for (const Work& work : pass_.works) work.wait();
  if (with_buffers) buffer_sync_.finish(comm_);
  const Since seen = since_;
  forget();
  pass_.works.clear();
  pass_.times.end = since_begin();
  pass_.active = false;
  if (!divisor_) check_weights(seen);
}

void Replicated::finish_unreduced() {
  if (since_.weights[1] + since_.weights[2] > 0) check_complete();
  banks_[bank_in_use_].settle();
  if (syncs_buffers_) {
    buffer_sync_.start(comm_);
    buffer_sync_.finish(comm_);
  }
  forget();
}

double Replicated::divisor() {
  if (divisor_) return *divisor_;
  pass_.weights.wait();
  const auto [sum, weighted, plain] = since_.weights;
  return weighted > 0 && sum > 0 ? sum : comm_.size();
}

// Only after the reduction, which nobody leaves alone.
void Replicated::check_weights(const Since& seen) {
  const auto [sum, weighted, plain] = seen.weights;
  if (weighted > 0 && plain > 0) {
    throw BadInput(
        "loss.backward() and lockstep::backward(loss, samples) were mixed in one step: use one of "
        "them on all workers, for all batches of a step");
  }
  if (weighted > 0 && sum <= 0)
    throw BadInput("no worker has a sample in this step: nothing to average");
}

void Replicated::synchronize() {
  if (pass_.active) throw BadInput("synchronize() inside a backward pass: call it after");
  begin_pass(true);
  finish();
  pass_.active = false;
}

void Replicated::check_attached() const {
  if (pass_.active) {
    throw BadInput(
        "the last backward pass was broken off and left no average: call zero_grad() and run it "
        "again");
  }
  for (std::size_t i = 0; i < accumulators_.size(); ++i) {
    const NamedTensor& named = model_.trained[layout_.entries()[i].registered];
    banks_[bank_in_use_].check(i);
    parameters_.check(i);
    if (!named.tensor.requires_grad()) {
      throw BadInput(fmt::format(
          "{} was frozen after the model had been replicated: freeze before data_parallel()",
          named.name));
    }
    if (torch::autograd::impl::grad_accumulator(named.tensor) != accumulators_[i]) {
      throw BadInput(fmt::format(
          "{} has lost its hook: move or convert the module before data_parallel(), not after",
          named.name));
    }
  }
}

void Replicated::zero_grad() {
  if (pass_.active && pass_.synchronised && comm_.size() > 1) {
    throw BadInput(
        "a synchronised backward pass was broken off on this worker, and the others wait for its "
        "gradients: end this worker");
  }
  pass_.active = false;
  forget();
  banks_[bank_in_use_].clear();
  check_attached();
}

bool Replicated::identical() {
  const auto digests = gather(comm_, digest(model_.everything()));
  return std::equal(digests.begin() + 1, digests.end(), digests.begin());
}

}  // namespace lockstep::replica

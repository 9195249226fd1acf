#include "torch/replica/replicated.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "base/check.h"
#include "torch/device/device.h"
#include "torch/kernels/chunks.h"
#include "torch/replica/agreement.h"
#include "torch/replica/tensors.h"

namespace lockstep::replica {
namespace {

// LibTorch runs the backward pass of a GPU on a thread of its own, to which nothing of the caller's comes. Workers on GPUs
// are processes: what the last of their threads has said is what is meant.
thread_local std::optional<double> current_weight;
std::mutex weight_mutex;
std::optional<double> weight_of_process;

void set_weight(std::optional<double> weight) {
  current_weight = weight;
  const std::lock_guard lock(weight_mutex);
  weight_of_process = weight;
}

plan::Layout layout_of(const std::vector<NamedTensor>& trained) {
  std::vector<plan::Parameter> parameters;
  parameters.reserve(trained.size());
  for (const auto& [name, tensor] : trained) {
    parameters.push_back(
        {name, reducible_dtype(tensor, name), static_cast<std::size_t>(tensor.numel())});
  }
  return plan::Layout(parameters);
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

std::optional<plan::Layout> layout_of_sums(const plan::Layout& layout) {
  const bool has_halves = std::any_of(layout.entries().begin(), layout.entries().end(),
                                      [](const auto& entry) { return comm::is_half(entry.dtype); });
  return has_halves ? std::optional(kernels::wide_layout(layout)) : std::nullopt;
}

WeightScope::WeightScope(double weight) : outer_(current_weight) {
  set_weight(weight);
}
WeightScope::~WeightScope() {
  set_weight(outer_);
}
std::optional<double> WeightScope::current() {
  return current_weight;
}
std::optional<double> WeightScope::of_process() {
  const std::lock_guard lock(weight_mutex);
  return weight_of_process;
}

std::shared_ptr<Replicated> Replicated::make(Wire wire, std::vector<NamedTensor> parameters,
                                             std::vector<NamedTensor> buffers,
                                             const DataParallelOptions& options) {
  Comm& comm = wire.comm;
  const CallName call(comm, "data_parallel()");
  Model model = sort_tensors(std::move(parameters), std::move(buffers));
  agree_on_model(comm, model, options);
  copy_from_leader(comm, model.everything());
  const plan::Layout layout = layout_of(model.trained);
  const Device device = device_of(model, comm);
  const device::CurrentDevice current(device);
  FlatParameters flat(comm, model.trained, layout,
                      options.share_parameters ? Copies::kPerHost : Copies::kPerWorker, device);
  FlatMemory gradients(comm, layout.bytes(), Copies::kPerWorker, device);
  std::shared_ptr<Replicated> replica(new Replicated(
      std::move(wire), std::move(model), std::move(flat), std::move(gradients), options));
  replica->retire_earlier();
  replica->install_hooks();
  replica->watch_parameters();
  return replica;
}

Replicated::Replicated(Wire wire, Model model, FlatParameters parameters, FlatMemory gradients,
                       const DataParallelOptions& options)
    : options_(options),
      model_(std::move(model)),
      layout_(layout_of(model_.trained)),
      pieces_(plan::plan_pieces(layout_, gradients.shared() ? wire.comm.size() : 1)),
      buckets_(plan::plan_buckets(layout_, bucket_limits(options, gradients))),
      parameters_(std::move(parameters)),
      ledger_(layout_, buckets_),
      buffer_sync_(wire.comm, model_.buffers, gradients.device()),
      identity_{std::move(wire.announcements), wire.number,
                options.name.empty() ? "the model" : options.name},
      comm_(std::move(wire.comm)) {
  syncs_buffers_ = options.buffers == BufferSource::kLeader;
  gather_ = make_gather(layout_, pieces_, gradients.device());
  if (gather_) {
    side_.emplace(gradients.device());
    ready_.emplace();
  }
  banks_.emplace_back(model_.trained, layout_, std::move(gradients), gather_);
  if (options.check_weights && comm_.size() > 1)
    weight_sample_.emplace(model_.parameters, layout_, parameters_.memory(), comm_.timeout());
  for (const NamedTensor& named : model_.parameters) {
    if (!named.tensor.requires_grad()) frozen_.push_back(named);
  }
  on_device() || may_be_absent() ? banks_.front().clear() : banks_.front().settle();
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
    FlatMemory memory(comm_, bank_layout().bytes(), Copies::kPerWorker, device());
    banks_.emplace_back(model_.trained, bank_layout(), std::move(memory), gather_);
  }
}

void Replicated::settle_bank() {
  if (!on_device()) return banks_[bank_in_use_].settle();
  for (const plan::Bucket& bucket : buckets_) banks_[bank_in_use_].bring(bucket);
}

// Hidden, so that what backward makes is added by adopt(): autograd adds sparse gradients in an order of its own.
void Replicated::use_bank(int bank) {
  settle_bank();
  bank_in_use_ = place_of(bank);
  banks_[bank_in_use_].hide();
}

void Replicated::use_gradients() {
  if (bank_in_use_ == 0 && on_device()) return;
  settle_bank();
  bank_in_use_ = 0;
  banks_.front().attach();
}

void Replicated::use_averages() {
  use_gradients();
  if (wide_) banks_.front().take(banks_[place_of(0)]);
}

void Replicated::watch_gradients() {
  LOCKSTEP_CHECK(reads_all_gradients(), "gradients are watched where all are read");
  for (std::size_t place = place_of(0); place < banks_.size(); ++place) {
    if (banks_[place].watched()) continue;
    FlatMemory parities(comm_, pieces_.all.size() * sizeof(comm::Parity), Copies::kPerWorker);
    banks_[place].watch(std::move(parities), pieces_, faults_, comm_.rank());
  }
}

void Replicated::release_banks() {
  for (FlatGradients& bank : banks_) bank.unwatch();
  averaged_.clear();
  bank_in_use_ = 0;
  banks_.front().clear();
}

void Replicated::begin_bank(int bank) {
  if (!on_device() || bank_in_use_ != place_of(bank)) use_bank(bank);
  banks_[bank_in_use_].clear();
}

void Replicated::settle() {
  check_attached();
  if (since_.weights[1] + since_.weights[2] > 0) {
    throw BadInput(
        "gradients were added up in no_sync() and not averaged: leave the last backward() outside "
        "of it, or call model.synchronize(), before the step");
  }
  if (!on_device()) banks_[bank_in_use_].settle();
  hide_absent();
}

void Replicated::add_banks(int into, int from) {
  settle_bank();  // it may be one of them
  if (watches_gradients()) return banks_[place_of(into)].add(banks_[place_of(from)]);
  torch::NoGradGuard no_grad;
  for (const plan::Bucket& bucket : buckets_) {
    if (on_device()) {
      values_of(banks_[place_of(into)], bucket).add_(values_of(banks_[place_of(from)], bucket));
      continue;
    }
    const Buffer left = banks_[place_of(into)].bucket(bucket);
    const Buffer right = banks_[place_of(from)].bucket(bucket);
    comm::combine(left.dtype, ReduceOp::kSum, left.data, right.data, left.data, left.count);
  }
}

// After a synchronisation nothing has been added up.
void Replicated::forget() {
  since_.weights = {};
  pending_.clear();
  forget_reached();
}

void Replicated::forget_reached() {
  since_.reached.assign(layout_.entries().size(), false);
}

void Replicated::gradient_ready(std::size_t entry, const torch::Tensor& incoming) {
  if (capture_) {
    banks_[bank_in_use_].adopt(entry, incoming);
    return captured_ready(entry);
  }
  const bool first = !pass_.active;
  if (first) check_pending(entry);
  begin_if_first();
  if (first) check_cleared(entry);
  banks_[bank_in_use_].adopt(entry, incoming);
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

void Replicated::begin_if_first() {
  if (pass_.active) return;
  if (suspended_ == 0) check_module();  // before anything is on its way
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = shared_from_this()] { self->end_pass(); });
  begin_pass(suspended_ == 0);
  add_weight();
  if (pass_.synchronised) say_note();
}

void Replicated::begin_pass(bool synchronised) {
  ledger_.begin();
  if (checks_each_pass_ && !may_be_absent()) forget_reached();
  const BackwardTimes last = pass_.times;
  pass_ = {};
  pass_.active = true;
  pass_.synchronised = synchronised;
  pass_.began = Clock::now();
  if (!synchronised) pass_.times = last;
}

void Replicated::add_weight() {
  const auto weight = on_device() ? WeightScope::of_process() : WeightScope::current();
  since_.weights[0] += weight.value_or(0);
  since_.weights[weight ? 1 : 2] += 1;
}

// A weighted sum cannot be added to an average: it is divided at its end. `entry` is the first of the pass, and autograd
// has added to what was there if nobody wrote to it since.
void Replicated::check_cleared(std::size_t entry) const {
  if (averaged_.empty() || since_.weights[1] == 0) return;
  if (banks_[bank_in_use_].version(entry) != averaged_[entry] + 1) return;
  throw BadInput(
      "lockstep::backward(loss, samples) would add to averages of the step before: call "
      "zero_grad() "
      "first; of several in one step put all but the last into no_sync(), or add up their losses");
}

// What no_sync() has added up with weights is divided by them at its end: cleared or changed since, it is not what they
// count. `entry` is the first of the pass that adds to it.
void Replicated::check_pending(std::size_t entry) const {
  if (pending_.empty() || pending_[entry] < 0) return;
  if (banks_[bank_in_use_].version(entry) == pending_[entry] + 1) return;
  throw BadInput(
      "gradients that lockstep::backward(loss, samples) had added up in no_sync() were cleared or "
      "changed before they were averaged: clear them with model.zero_grad(), which also forgets "
      "their samples");
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

// What this worker has added up is known before its first bucket is. Who weighs shards itself has told the others.
void Replicated::say_note() {
  if (divisor_ || pass_.notes) return;
  pass_.plain = since_.weights[2] > 0;
  ++identity_.passes;
  const PassNote note{identity_.number, identity_.passes, since_.weights,
                      weight_sample_ ? weight_sample_->take(identity_.passes) : 0};
  pass_.notes = identity_.announcements->say(note.record(), "backward()");
}

// Waits for all notes, and adds up the weights in them.
void Replicated::hear_notes() {
  if (std::exchange(pass_.heard, true)) return;
  pass_.notes->wait();
  std::vector<PassNote> notes;
  for (const control::Record& record : pass_.notes->records())
    notes.push_back(PassNote::of(record));
  if (const auto difference = difference_of(notes, identity_.name))
    identity_.announcements->disagree(*difference);
  since_.weights = {};
  for (const PassNote& note : notes) {
    for (std::size_t i = 0; i < note.weights.size(); ++i) since_.weights[i] += note.weights[i];
  }
}

// What the sum will be divided by, if it is known yet. A worker whose passes were plain takes the others' for plain,
// too; when they were not, all find out in check_weights().
std::optional<double> Replicated::known_divisor() {
  say_note();
  if (divisor_) return divisor_;
  if (pass_.plain) return comm_.size();
  return pass_.notes->complete() ? std::optional(divisor()) : std::nullopt;
}

// Gradients are undefined before a pass on a GPU, and must be again before the replay.
void Replicated::begin_capture() {
  ledger_.begin();
  capture_.emplace();
  if (!reduces_alone()) capture_->ready.resize(buckets_.size());
}

// Nobody waits for the points of a worker that reduces alone.
void Replicated::captured_ready(std::size_t entry) {
  ledger_.mark(entry);
  while (const auto bucket = ledger_.next_ready()) {
    if (!reduces_alone())
      capture_->ready[*bucket].record_in_graph(device::current_stream(device()));
  }
}

Replicated::Captured Replicated::end_capture() {
  for (const std::size_t entry : ledger_.missing()) captured_ready(entry);
  for (std::size_t i = 0; i < layout_.entries().size(); ++i) {
    const torch::Tensor& parameter = model_.trained[layout_.entries()[i].registered].tensor;
    capture_->gradients.push_back(parameter.grad());
    capture_->own.push_back(banks_[bank_in_use_].owns(i));
  }
  Captured captured = std::move(*capture_);
  cancel_capture();
  return captured;
}

void Replicated::cancel_capture() {
  capture_.reset();
  for (NamedTensor& named : model_.trained) named.tensor.mutable_grad() = torch::Tensor();
}

// What is not reduced stays where the graph has written it, until the next replay. What is goes to the wire as soon as
// the graph has come to it, on another stream.
void Replicated::replayed(const Captured& captured) {
  begin_pass(suspended_ == 0);
  add_weight();
  for (std::size_t i = 0; i < captured.gradients.size(); ++i) {
    if (!captured.gradients[i].defined()) continue;
    banks_[bank_in_use_].set(i, captured.gradients[i], captured.own[i]);
    ledger_.mark(i);
    since_.reached[i] = true;
  }
  if (pass_.synchronised && !reduces_alone()) {
    check_complete();
    say_note();
    const double divided_by = divisor();
    const ReduceOptions rule{.factor = 1 / divided_by, .algorithm = options_.algorithm};
    pass_.times.buckets = buckets_.size();
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket)
      launch_beside(bucket, rule, captured.ready[bucket]);
  }
  end_pass();
}

void Replicated::end_pass() {
  take_back_moved();
  if (pass_.synchronised || checks_each_pass_) check_complete();
  if (pass_.synchronised) {
    if (pass_.times.last_gradient.count() == 0) pass_.times.last_gradient = since_begin();
    finish();
  } else if (since_.weights[1] > 0) {
    pending_ = banks_[bank_in_use_].versions();
  }
  pass_.active = false;
}

void Replicated::check_complete() const {
  for (const auto& [name, tensor] : frozen_) {
    if (!tensor.requires_grad()) continue;
    throw BadInput(fmt::format(
        "parameter {} was frozen when the model was replicated and wants gradients now: call "
        "data_parallel() again, which replaces this replica, and make its optimizer again",
        name));
  }
  if (options_.missing_gradient == MissingGradient::kZero) return;
  std::vector<std::string> names;
  for (std::size_t entry = since_.reached.size(); entry-- > 0;) {  // as the model registers them
    if (since_.reached[entry]) continue;
    const plan::Entry& missing = layout_.entries()[entry];
    if (!model_.trained[missing.registered].tensor.requires_grad()) throw_frozen(missing.name);
    names.push_back(missing.name);
  }
  if (names.empty()) return;
  throw BadInput(fmt::format(
      "no gradient for {}: the loss did not depend on it; use it in forward(), freeze it, or set "
      "missing_gradient = MissingGradient::kZero",
      fmt::join(names, ", ")));
}

void Replicated::finish() {
  const auto has = present();  // before settle(), which makes zeros of what is missing
  if (!on_device()) banks_[bank_in_use_].settle();
  say_note();
  const bool with_buffers = syncs_buffers_;
  const double divided_by = divisor();
  for (std::size_t bucket = pass_.works.size(); bucket < buckets_.size(); ++bucket)
    launch(bucket, 1 / divided_by);
  find_absent(has);
  if (with_buffers) buffer_sync_.start(comm_);
  await_reductions();
  if (with_buffers) buffer_sync_.finish(comm_);
  hide_absent();
  const Since seen = since_;
  forget();
  if (!divisor_) {
    averaged_ = banks_[bank_in_use_].versions();
    parameters_.note_pass();
  }
  pass_.times.end = since_begin();
  pass_.active = false;
  if (!divisor_) check_weights(seen);
}

void Replicated::finish_unreduced() {
  if (since_.weights[1] + since_.weights[2] > 0) check_complete();
  const auto has = present();
  banks_[bank_in_use_].settle();
  find_absent(has);
  if (syncs_buffers_) {
    buffer_sync_.start(comm_);
    buffer_sync_.finish(comm_);
  }
  forget();
}

// By entry, as numbers that can be reduced: whether this worker has a gradient for it, from this pass or from before.
std::vector<std::uint8_t> Replicated::present() const {
  std::vector<std::uint8_t> has(since_.reached.begin(), since_.reached.end());
  for (std::size_t i = 0; i < has.size(); ++i) {
    const torch::Tensor& parameter = model_.trained[layout_.entries()[i].registered].tensor;
    if (parameter.grad().defined()) has[i] = 1;
  }
  return has;
}

// As DDP's find_unused_parameters: a gradient that one worker has is everybody's; one that nobody has stays undefined.
// Collective, where that may be.
void Replicated::find_absent(std::vector<std::uint8_t> has) {
  if (!may_be_absent()) return;
  comm_.all_reduce({has.data(), has.size(), DType::kUInt8}, {.op = ReduceOp::kMax}).wait();
  absent_.assign(has.size(), false);
  for (std::size_t i = 0; i < has.size(); ++i) absent_[i] = has[i] == 0;
}

void Replicated::hide_absent() {
  for (std::size_t i = 0; i < absent_.size(); ++i) {
    if (absent_[i])
      model_.trained[layout_.entries()[i].registered].tensor.mutable_grad() = torch::Tensor();
  }
}

double Replicated::divisor() {
  if (divisor_) return *divisor_;
  hear_notes();
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
  require_current();
  if (pass_.active) throw BadInput("synchronize() inside a backward pass: call it after");
  begin_pass(true);
  banks_[bank_in_use_].recheck_owners();
  finish();
  pass_.active = false;
}

void Replicated::zero_grad() {
  require_current();
  if (pass_.active && pass_.synchronised && comm_.size() > 1) {
    throw BadInput(
        "a synchronised backward pass was broken off on this worker, and the others wait for its "
        "gradients: end this worker");
  }
  if (std::exchange(pass_.active, false)) await_reductions();
  forget();
  averaged_.clear();
  absent_.clear();
  banks_[bank_in_use_].clear();
  check_attached();
}

bool Replicated::identical() {
  require_current();
  const CallName call(comm_, "identical()");
  const auto digests = gather(comm_, digest(model_.everything()));
  return std::equal(digests.begin() + 1, digests.end(), digests.begin());
}

}  // namespace lockstep::replica

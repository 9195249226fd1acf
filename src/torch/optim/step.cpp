// One step.
//
//   own slice   the blocks that this worker updates: its share where workers share memory, else all
//   hand-out    the new values go into every worker's parameters, piece by piece while they are at hand
//
//   1. wait until every worker is here and means the same: all gradients are there, and nobody reads parameters any more
//   2. with clipping: the own slice of the gradients is gathered, its blocks' squares go where all see
//      them, wait again, and everybody adds all of them up in the order of the tree
//   3. read the gradient of a piece, update its part of the state and of the parameters, hand it out
//   4. wait until every slice is written
//
// Watched, an update compares what it finds with what the last one left: the parities of parameters and state, and of
// the gradients where they are watched as well. A difference is noted, and the step goes on: whoever owns the loop ends
// it on all workers together.
//
// With one parameter copy per host there is nobody to hand out to. With other engines the own slice is everything and
// there is nobody to wait for. The bits are the same: each element sees the same operations.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <exception>

#include "base/hash.h"
#include "torch/optim/device_step.h"
#include "torch/optim/impl.h"

namespace lockstep::optim {
namespace {

// Pieces below which a second thread costs more than it saves.
constexpr std::int64_t kGrain = 4;

// Calls `body` with some pieces, by number, and a reader of the source, on the threads that LibTorch uses.
template <typename Body>
void for_each_piece(const replica::Replicated& model, Optimizer::Impl::Range pieces,
                    const GradientSource& source, const Body& body) {
  const auto& entries = model.layout().entries();
  const auto first = static_cast<std::int64_t>(pieces.begin);
  const auto last = static_cast<std::int64_t>(pieces.end);
  at::parallel_for(first, last, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::optional<GradientReader> reader;
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      const std::size_t entry = model.pieces().all[i].entry;
      const DType dtype = entries[entry].dtype;
      if (!reader || reader->dtype() != dtype) reader.emplace(source, entry, dtype);
      body(i, *reader);
    }
  });
}

std::size_t offset_of(const plan::Entry& entry, std::size_t element) {
  return entry.offset + element * size_of(entry.dtype);
}

}  // namespace

void Optimizer::Impl::step(const GradientSource& source) {
  torch::NoGradGuard no_grad;
  if (on_device) return step_on_device();
  last_wait = {};
  last_norm = 0;
  begin_together();
  GradientSource gradients = source;
  if (clip_norm > 0) {
    gather_own_slice(source);
    gradients = GradientSource::own(*model);
    gradients.factor = clip_factor();
  }
  ++steps;
  update_own_slice(gradients);
  meet();
  // Whoever saved a parameter for a backward to come must find out, as after torch::optim.
  for (std::size_t entry = 0; entry < rule_of.size(); ++entry)
    torch::autograd::impl::bump_version(parameter_of(entry));
}

// Every worker updates everything.
void Optimizer::Impl::step_on_device() {
  const device::CurrentDevice current(model->device());
  const kernels::Note along = std::exchange(note, {});
  model->settle();
  on_device->begin();
  ++steps;
  on_device->update(along);
  for (std::size_t entry = 0; entry < rule_of.size(); ++entry)
    torch::autograd::impl::bump_version(parameter_of(entry));
  trust_masters();
}

std::string Optimizer::Impl::diverged(double norm, std::int64_t step) {
  return fmt::format(
      "the norm of the gradients is {} at step {}: training has diverged; lower the "
      "learning rate or warm it up, or look for bad samples",
      norm, step);
}

// Whether all workers are about to do the same: each would update its part in its own way else. A worker that cannot
// take the step says so, and then nobody does.
void Optimizer::Impl::begin_together() {
  if (!together) return model->settle();
  struct Intention {
    std::uint64_t cannot = 0;
    std::uint64_t steps = 0;
    std::uint64_t rates = 0;  // digest of learning rates and clipping
    bool operator==(const Intention&) const = default;
  };
  Comm& comm = model->comm();
  std::vector<Intention> all(static_cast<std::size_t>(comm.size()));
  Intention& mine = all[static_cast<std::size_t>(comm.rank())];
  mine.steps = static_cast<std::uint64_t>(steps);
  mine.rates = std::bit_cast<std::uint64_t>(clip_norm);
  for (const auto& rule : rules)
    mine.rates = base::mix64(mine.rates ^ std::bit_cast<std::uint64_t>(rule->lr()));
  std::exception_ptr cannot;
  try {
    model->settle();
  } catch (const BadInput&) {
    cannot = std::current_exception();
    mine.cannot = 1;
  }
  const auto began = std::chrono::steady_clock::now();
  comm.all_gather({all.data(), all.size() * sizeof(Intention) / 8, DType::kInt64}).wait();
  last_wait += std::chrono::steady_clock::now() - began;
  if (cannot) std::rethrow_exception(cannot);
  for (int rank = 0; rank < comm.size(); ++rank) {
    const Intention& theirs = all[static_cast<std::size_t>(rank)];
    if (theirs.cannot != 0)
      throw BadInput(fmt::format("rank {} cannot take this step; its own error says why", rank),
                     {rank});
    if (theirs == all[0]) continue;
    throw Mismatch(
        fmt::format("rank 0 and rank {} are at step {} and {} of the optimizer{}: set learning "
                    "rates, clipping and state alike on every worker",
                    rank, all[0].steps, theirs.steps,
                    theirs.rates == all[0].rates ? "" : " with other learning rates or clipping"),
        {0, rank});
  }
}

void Optimizer::Impl::meet() {
  if (!together) return;
  const auto began = std::chrono::steady_clock::now();
  model->comm().barrier().wait();
  last_wait += std::chrono::steady_clock::now() - began;
}

// Others read this worker's gradients only outside of its slice, so the sum can lie where its operand was.
void Optimizer::Impl::gather_own_slice(const GradientSource& source) {
  std::byte* const mine = model->gradients().data();
  const bool is_there =
      source.operands.size() == 1 && source.operands[0] == mine && source.factor == 1;
  if (is_there && source.parities.empty()) return;
  const auto& entries = model->layout().entries();
  for_each_piece(*model, own, source, [&](std::size_t number, GradientReader& gradients) {
    const plan::Stretch& piece = model->pieces().all[number];
    const plan::Entry& entry = entries[piece.entry];
    const std::size_t offset = offset_of(entry, piece.first);
    const void* const values = read(number, gradients);
    if (!is_there) std::memcpy(mine + offset, values, piece.count * size_of(entry.dtype));
  });
}

// What the gradients are multiplied by so that their norm is at most clip_norm.
double Optimizer::Impl::clip_factor() {
  const plan::Layout& layout = model->layout();
  if (!block_sums)
    block_sums.emplace(model->comm(), layout.blocks() * sizeof(double), replica::Copies::kPerHost);
  auto* const sums = reinterpret_cast<double*>(block_sums->data());
  const GradientSource averaged = GradientSource::own(*model);
  for_each_piece(*model, own, averaged, [&](std::size_t number, GradientReader& gradients) {
    const plan::Stretch& piece = model->pieces().all[number];
    const plan::Entry& entry = layout.entries()[piece.entry];
    const auto* const values = static_cast<const std::byte*>(read(number, gradients));
    for (std::size_t done = 0; done < piece.count; done += plan::kBlockElements) {
      const std::size_t count = std::min(plan::kBlockElements, piece.count - done);
      sums[entry.first_block + (piece.first + done) / plan::kBlockElements] =
          comm::sum_of_squares(entry.dtype, values + done * size_of(entry.dtype), count);
    }
  });
  meet();
  last_norm = std::sqrt(plan::tree_sum({sums, layout.blocks()}));
  if (!std::isfinite(last_norm)) throw BadInput(diverged(last_norm, steps));
  const double factor = clip_norm / (last_norm + 1e-6);  // as torch::nn::utils::clip_grad_norm_
  return std::min(factor, 1.0);
}

void Optimizer::Impl::update_own_slice(const GradientSource& source) {
  const bool compares = watches && resting.size() == own.size();
  if (watches) resting.resize(own.size());
  applied.resize(watches && !together ? own.size() : 0);
  for_each_piece(*model, own, source, [&](std::size_t number, GradientReader& gradients) {
    update_piece(number, gradients, compares);
  });
}

namespace {

// A memory where the host can read it.
class OnHost {
 public:
  explicit OnHost(const replica::FlatMemory& memory) : data_(memory.data()) {
    if (memory.device().kind == DeviceKind::kCpu) return;
    copy_ = memory.as_tensor(torch::kUInt8, 0, memory.bytes()).cpu();
    data_ = static_cast<const std::byte*>(copy_.data_ptr());
  }
  const std::byte* data() const { return data_; }

 private:
  torch::Tensor copy_;
  const std::byte* data_;
};

}  // namespace

void Optimizer::Impl::check_at_rest() {
  collect_watched();
  if (!watches || resting.size() != own.size()) return;
  const OnHost parameters(model->parameters());
  std::vector<OnHost> states(memories.begin(), memories.end());
  for (std::size_t number = own.begin; number < own.end; ++number) {
    const plan::Stretch& piece = model->pieces().all[number];
    const plan::Entry& entry = model->layout().entries()[piece.entry];
    comm::Parity seen =
        comm::parity(entry.dtype, parameters.data() + offset_of(entry, piece.first), piece.count);
    const auto used = static_cast<std::size_t>(rules[rule_of[piece.entry]]->states());
    for (std::size_t i = 0; i < states.size(); ++i) {
      const plan::Entry& kept = state_layout.entries()[piece.entry];
      const bool is_master = has_masters && i + 1 == states.size();
      if (is_master ? kept.dtype == entry.dtype : i >= used) continue;
      seen ^=
          comm::parity(kept.dtype, states[i].data() + offset_of(kept, piece.first), piece.count);
    }
    if (seen != resting[number - own.begin])
      model->faults().note({replica::Fault::What::kParameter, piece, model->comm().rank()});
  }
}

void Optimizer::Impl::collect_watched() {
  if (on_device) on_device->collect();
}

void Optimizer::Impl::forget_watched() {
  resting.clear();
  if (on_device) on_device->forget();
}

void Optimizer::Impl::note_watched(std::span<const comm::Parity> before,
                                   std::span<const comm::Parity> after,
                                   std::span<const comm::Parity> gradients) {
  for (std::size_t i = 0; i < resting.size(); ++i) {
    if (before[i] == resting[i]) continue;
    model->faults().note(
        {replica::Fault::What::kParameter, model->pieces().all[i], model->comm().rank()});
  }
  resting.assign(after.begin(), after.end());
  applied.assign(gradients.begin(), gradients.end());
}

// The gradient of a piece, and a note if it is not what was written.
const void* Optimizer::Impl::read(std::size_t number, GradientReader& gradients) {
  const plan::Stretch& piece = model->pieces().all[number];
  const void* const values = gradients.read(number, piece);
  if (const auto worker = gradients.changed())
    model->faults().note({replica::Fault::What::kGradient, piece, *worker});
  return values;
}

void Optimizer::Impl::update_piece(std::size_t number, GradientReader& gradients, bool compares) {
  const plan::Stretch& piece = model->pieces().all[number];
  const plan::Entry& entry = model->layout().entries()[piece.entry];
  const std::size_t offset = offset_of(entry, piece.first);
  const replica::FlatMemory& parameters = model->parameters();
  Piece update;
  update.dtype = entry.dtype;
  update.parameter = parameters.data() + offset;
  update.gradient = read(number, gradients);
  update.count = piece.count;
  for (std::size_t i = 0; i < memories.size(); ++i) update.state[i] = memories[i].data() + offset;
  update.watched = watches;
  const comm::Parities seen = rules[rule_of[piece.entry]]->update(update, steps);
  if (watches) {
    comm::Parity& rests = resting[number - own.begin];
    if (compares && seen.before != rests)
      model->faults().note({replica::Fault::What::kParameter, piece, model->comm().rank()});
    rests = seen.after;
  }
  if (!applied.empty())
    applied[number - own.begin] = comm::parity(entry.dtype, update.gradient, piece.count);
  if (!together) return;
  for (int worker = 0; worker < model->comm().size(); ++worker) {
    if (parameters.apart(worker))
      std::memcpy(parameters.of(worker) + offset, update.parameter,
                  piece.count * size_of(entry.dtype));
  }
}

}  // namespace lockstep::optim

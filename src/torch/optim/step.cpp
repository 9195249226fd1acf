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

// What a worker says before a step.
struct StepNote {
  std::uint64_t replica = 0;    // that it updates
  std::uint64_t steps = 0;      // taken before
  std::uint64_t rates = 0;      // a digest of the learning rates
  std::uint64_t clip = 0;       // the bits of the norm
  std::uint64_t gradients = 0;  // a sample of the averages; 0: none was taken
  std::uint64_t cannot = 0;

  control::Record record() const { return {replica, steps, rates, clip, gradients, cannot}; }
  static StepNote of(const control::Record& record) {
    return {record[0], record[1], record[2], record[3], record[4], record[5]};
  }

  // In what another one differs; empty: in nothing.
  std::string difference(const StepNote& other) const {
    if (other.replica != replica)
      return fmt::format("it is of replica {} on the one and of replica {} on the other", replica,
                         other.replica);
    if (other.steps != steps)
      return fmt::format("step {} follows on the one and step {} on the other", steps, other.steps);
    if (other.rates != rates) return "they have other learning rates";
    if (other.clip != clip) return "they have other norms for clipping";
    if (other.gradients != gradients) return "they have other gradients after backward()";
    return {};
  }
};

}  // namespace

void Optimizer::Impl::step(const GradientSource& source) {
  torch::NoGradGuard no_grad;
  last_wait = {};
  if (on_device) return step_on_device();
  last_norm = 0;
  if (together) {
    hear_step(say_step(source));
  } else {
    model->settle();
  }
  GradientSource gradients = source;
  if (clip_norm > 0) {
    gather_own_slice(source);
    gradients = GradientSource::own(*model);
    gradients.factor = clip_factor();
  }
  ++steps;
  count_left_alone();
  update_own_slice(gradients);
  meet();
  // Whoever saved a parameter for a backward to come must find out, as after torch::optim.
  for (std::size_t entry = 0; entry < rule_of.size(); ++entry)
    torch::autograd::impl::bump_version(parameter_of(entry));
  model->note_update();
}

void Optimizer::Impl::count_left_alone() {
  for (std::size_t entry = 0; entry < left_alone.size(); ++entry)
    left_alone[entry] += leaves_alone(entry) ? 1 : 0;
}

// Every worker updates everything.
void Optimizer::Impl::step_on_device() {
  const device::CurrentDevice current(model->device());
  const kernels::Note along = std::exchange(note, {});
  model->settle();
  on_device->begin();
  ++steps;
  count_left_alone();
  on_device->update(along);
  model->banks().hide_absent();
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

Optimizer::Impl::Said Optimizer::Impl::say_step(const GradientSource& source) {
  Said said;
  try {
    model->settle();
  } catch (const BadInput&) {
    said.cannot = std::current_exception();
  }
  std::uint64_t rates = 0;
  for (const auto& rule : rules)
    rates = base::mix64(rates ^ std::bit_cast<std::uint64_t>(rule->lr()));
  const replica::FlatMemory& averages = model->gradients();
  const bool samples = !on_device && model->comm().size() > 1 && source.is(averages);
  const StepNote mine{
      model->identity().number,
      static_cast<std::uint64_t>(steps),
      rates,
      std::bit_cast<std::uint64_t>(clip_norm),
      samples ? replica::sample_lines(averages, model->layout(), static_cast<std::uint64_t>(steps))
              : 0,
      said.cannot ? 1U : 0U};
  said.all = model->identity().announcements->say(mine.record(), "optimizer.step()");
  return said;
}

void Optimizer::Impl::hear_step(const Said& said) {
  const auto began = std::chrono::steady_clock::now();
  said.all->wait();
  last_wait += std::chrono::steady_clock::now() - began;
  if (said.cannot) std::rethrow_exception(said.cannot);
  const auto& records = said.all->records();
  const StepNote first = StepNote::of(records.front());
  for (std::size_t i = 0; i < records.size(); ++i) {
    const StepNote theirs = StepNote::of(records[i]);
    const int rank = static_cast<int>(i);
    if (theirs.cannot != 0)
      throw BadInput(fmt::format("rank {} cannot take this step; its own error says why", rank),
                     {rank});
    if (const std::string difference = first.difference(theirs); !difference.empty()) {
      model->identity().announcements->disagree(
          Mismatch(fmt::format("optimizer.step() differs between rank 0 and rank {}: {}; do the "
                               "same on every worker",
                               rank, difference),
                   {0, rank}));
    }
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
  const bool is_there = source.is(model->gradients());
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

// A memory where the host can read it.
class Optimizer::Impl::OnHost {
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

// Of a piece of the parameters and of the states that its rule has.
comm::Parity Optimizer::Impl::parity_at_rest(const plan::Stretch& piece, const OnHost& parameters,
                                             const std::vector<OnHost>& states) const {
  const plan::Entry& entry = model->layout().entries()[piece.entry];
  comm::Parity seen =
      comm::parity(entry.dtype, parameters.data() + offset_of(entry, piece.first), piece.count);
  const auto used = static_cast<std::size_t>(rules[rule_of[piece.entry]]->states());
  for (std::size_t i = 0; i < states.size(); ++i) {
    const plan::Entry& kept = state_layout.entries()[piece.entry];
    const bool is_master = has_masters && i + 1 == states.size();
    if (is_master ? kept.dtype == entry.dtype : i >= used) continue;
    seen ^= comm::parity(kept.dtype, states[i].data() + offset_of(kept, piece.first), piece.count);
  }
  return seen;
}

void Optimizer::Impl::check_at_rest() {
  collect_watched();
  if (!watches || resting.size() != own.size()) return;
  const OnHost parameters(model->parameters());
  const std::vector<OnHost> states(memories.begin(), memories.end());
  for (std::size_t number = own.begin; number < own.end; ++number) {
    const plan::Stretch& piece = model->pieces().all[number];
    if (parity_at_rest(piece, parameters, states) != resting[number - own.begin])
      model->faults().note({replica::Fault::What::kParameter, piece, model->comm().rank()});
  }
}

// What nobody has a gradient for stays as it is; if no update has seen it yet, it is looked at for the next.
void Optimizer::Impl::leave_alone(std::size_t number, bool seen_before) {
  if (!applied.empty()) applied[number - own.begin] = 0;
  if (!watches || seen_before) return;
  const plan::Stretch& piece = model->pieces().all[number];
  resting[number - own.begin] =
      parity_at_rest(piece, OnHost(model->parameters()), {memories.begin(), memories.end()});
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
  if (leaves_alone(piece.entry)) return leave_alone(number, compares);
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
  const comm::Parities seen = rules[rule_of[piece.entry]]->update(update, steps_of(piece.entry));
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

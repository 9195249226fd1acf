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
#include "torch/optim/impl.h"

namespace lockstep::optim {
namespace {

// Pieces below which a second thread costs more than it saves.
constexpr std::int64_t kGrain = 4;

// Calls `body` with parts of at most kUpdateElements of every stretch, and a reader of the source, on the threads that
// LibTorch uses.
template <typename Body>
void for_each_piece(const std::vector<plan::Stretch>& stretches, const plan::Layout& layout,
                    const GradientSource& source, const Body& body) {
  for (const plan::Stretch& stretch : stretches) {
    const auto pieces =
        static_cast<std::int64_t>((stretch.count + kUpdateElements - 1) / kUpdateElements);
    at::parallel_for(0, pieces, kGrain, [&](std::int64_t begin, std::int64_t end) {
      GradientReader reader(source, layout.entries()[stretch.entry].dtype);
      for (std::int64_t i = begin; i < end; ++i) {
        const std::size_t done = static_cast<std::size_t>(i) * kUpdateElements;
        body(plan::Stretch{stretch.entry, stretch.first + done,
                           std::min(kUpdateElements, stretch.count - done)},
             reader);
      }
    });
  }
}

std::size_t offset_of(const plan::Entry& entry, std::size_t element) {
  return entry.offset + element * size_of(entry.dtype);
}

}  // namespace

void Optimizer::Impl::step(const GradientSource& source) {
  torch::NoGradGuard no_grad;
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
  if (source.operands.size() == 1 && source.operands[0] == mine && source.factor == 1) return;
  const auto& entries = model->layout().entries();
  for_each_piece(own, model->layout(), source,
                 [&](const plan::Stretch& piece, GradientReader& gradients) {
                   const plan::Entry& entry = entries[piece.entry];
                   const std::size_t offset = offset_of(entry, piece.first);
                   std::memcpy(mine + offset, gradients.read(offset, piece.count),
                               piece.count * size_of(entry.dtype));
                 });
}

// What the gradients are multiplied by so that their norm is at most clip_norm.
double Optimizer::Impl::clip_factor() {
  const plan::Layout& layout = model->layout();
  if (!block_sums)
    block_sums.emplace(model->comm(), layout.blocks() * sizeof(double), replica::Copies::kPerHost);
  auto* const sums = reinterpret_cast<double*>(block_sums->data());
  const GradientSource averaged = GradientSource::own(*model);
  for_each_piece(own, layout, averaged, [&](const plan::Stretch& piece, GradientReader& gradients) {
    const plan::Entry& entry = layout.entries()[piece.entry];
    for (std::size_t done = 0; done < piece.count; done += plan::kBlockElements) {
      const std::size_t first = piece.first + done;
      const std::size_t count = std::min(plan::kBlockElements, piece.count - done);
      sums[entry.first_block + first / plan::kBlockElements] =
          comm::sum_of_squares(entry.dtype, gradients.read(offset_of(entry, first), count), count);
    }
  });
  meet();
  last_norm = std::sqrt(plan::tree_sum({sums, layout.blocks()}));
  if (!std::isfinite(last_norm)) {
    throw BadInput(
        fmt::format("the norm of the gradients is {} at step {}: training has diverged; lower the "
                    "learning rate "
                    "or warm it up, or look for bad samples",
                    last_norm, steps));
  }
  const double factor = clip_norm / (last_norm + 1e-6);  // as torch::nn::utils::clip_grad_norm_
  return std::min(factor, 1.0);
}

void Optimizer::Impl::update_own_slice(const GradientSource& source) {
  for_each_piece(own, model->layout(), source,
                 [&](const plan::Stretch& piece, GradientReader& gradients) {
                   update_piece(piece, gradients);
                 });
}

void Optimizer::Impl::update_piece(const plan::Stretch& piece, GradientReader& gradients) {
  const plan::Entry& entry = model->layout().entries()[piece.entry];
  const std::size_t offset = offset_of(entry, piece.first);
  const replica::FlatMemory& parameters = model->parameters();
  Piece update;
  update.dtype = entry.dtype;
  update.parameter = parameters.data() + offset;
  update.gradient = gradients.read(offset, piece.count);
  update.count = piece.count;
  for (std::size_t i = 0; i < memories.size(); ++i) update.state[i] = memories[i].data() + offset;
  rules[rule_of[piece.entry]]->update(update, steps);
  if (!together) return;
  for (int worker = 0; worker < model->comm().size(); ++worker) {
    if (parameters.apart(worker))
      std::memcpy(parameters.of(worker) + offset, update.parameter,
                  piece.count * size_of(entry.dtype));
  }
}

}  // namespace lockstep::optim

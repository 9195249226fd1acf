#include "torch/optim/update.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <torch/csrc/autograd/variable.h>

#include <bit>
#include <cstdint>
#include <string>
#include <utility>

#include "base/hash.h"
#include "torch/replica/weight_sample.h"

namespace lockstep::optim {
namespace {

// A flat memory as the host reads it: itself if it is on the CPU, else a copy.
class OnHost {
 public:
  explicit OnHost(const replica::FlatMemory& memory)
      : copy_(memory.as_tensor(torch::kUInt8, 0, memory.bytes()).cpu()),
        data_(static_cast<const std::byte*>(copy_.data_ptr())) {}
  const std::byte* at(const plan::Entry& entry, std::size_t element) const {
    return data_ + entry.offset + element * size_of(entry.dtype);
  }

 private:
  torch::Tensor copy_;
  const std::byte* data_;
};

// Computes the parity of a piece: over its parameters, and over the states that its rule uses.
class AtRest {
 public:
  explicit AtRest(const Trained& trained)
      : trained_(trained),
        parameters_(trained.model->parts().parameters->seen()),
        states_(trained.state.memories().begin(), trained.state.memories().end()) {}

  flat::Parity operator()(const plan::Stretch& piece) const {
    const plan::Entry& entry = trained_.model->layout().entries()[piece.entry];
    const plan::Entry& kept = trained_.state.layout().entries()[piece.entry];
    flat::Parity seen = flat::parity(entry.dtype, parameters_.at(entry, piece.first), piece.count);
    for (std::size_t i = 0; i < states_.size(); ++i) {
      if (!counts(i, piece.entry)) continue;
      seen ^= flat::parity(kept.dtype, states_[i].at(kept, piece.first), piece.count);
    }
    return seen;
  }

 private:
  // Whether updates of this entry write to a memory: a rule's state, the average, or masters.
  bool counts(std::size_t memory, std::size_t entry) const {
    const StateMemory& state = trained_.state;
    const replica::FlatMemory* const it = &state.memories()[memory];
    if (it == state.average()) return true;
    if (it == state.masters()) return state.has_master(entry);
    return trained_.groups.rule_of(entry).states()[state.state_of(memory)] != nullptr;
  }

  const Trained& trained_;
  OnHost parameters_;
  std::vector<OnHost> states_;
};

// What a worker announces of its step.
struct StepNote {
  std::uint64_t replica = 0;    // the number of the replica that it updates
  std::uint64_t steps = 0;      // that were taken before
  std::uint64_t rates = 0;      // a digest of the learning rates
  std::uint64_t extras = 0;     // a digest of what the program has set beside the options
  std::uint64_t gradients = 0;  // a sample of the averages, and which are absent
  std::uint64_t cannot = 0;     // 1: this worker cannot make the step
  std::uint64_t written = 0;    // of Parameters::look(); 0 also if nobody should compare it
  std::uint64_t scale = 0;      // the bits of the scale of the losses; 0: there is none

  control::Record record() const {
    return {replica, steps, rates, extras, gradients, cannot, written, scale};
  }
  static StepNote of(const control::Record& record) {
    return {record[0], record[1], record[2], record[3], record[4], record[5], record[6], record[7]};
  }

  // How another note differs; empty if it does not.
  std::string difference(const StepNote& other) const {
    if (other.replica != replica)
      return fmt::format("it is of replica {} on the one and of replica {} on the other", replica,
                         other.replica);
    if (other.steps != steps)
      return fmt::format("step {} follows on the one and step {} on the other", steps, other.steps);
    if (other.rates != rates) return "they have other learning rates";
    if (other.extras != extras) return "they have other settings for clipping, norms or averages";
    if (other.scale != scale) return "their losses were scaled by other numbers";
    if (other.gradients != gradients)
      return "their gradients have other values, or other gradients are undefined there";
    if (other.written != written) return "the program wrote other values to the parameters there";
    return {};
  }
};

// 0 if no gradient is absent.
std::uint64_t digest_of(const std::vector<bool>& absent) {
  std::uint64_t digest = 0;
  for (std::size_t entry = 0; entry < absent.size(); ++entry)
    if (absent[entry]) digest ^= base::mix64(entry + 1);
  return digest;
}

BadInput written_in_loop(const std::string& model) {
  return BadInput(fmt::format(
      "something other than lockstep::optim has written to {} between two Steps. A step must not "
      "depend on what one worker wrote: limit weights inside the model's forward(), load with "
      "lockstep::load, or train with the drop-in loop",
      model));
}

}  // namespace

flat::Parity Update::parity_at_rest(const plan::Stretch& piece) const {
  return AtRest(trained_)(piece);
}

void Update::heed_loads() {
  if (std::exchange(loads_, trained_.model->loads()) != trained_.model->loads()) forget_parities();
}

void Update::check_at_rest() {
  collect();
  heed_loads();
  if (!watch_.on() || !watch_.knows()) return;
  const AtRest at_rest(trained_);
  for (std::size_t number = watch_.own().begin; number < watch_.own().end; ++number)
    watch_.expect(number, at_rest(trained_.model->pieces().all[number]));
}

void Update::bump_versions() {
  for (std::size_t entry = 0; entry < trained_.groups.entries(); ++entry)
    torch::autograd::impl::bump_version(trained_.parameter(entry));
}

std::uint64_t Extras::digest() const {
  std::uint64_t digest =
      base::mix64(static_cast<std::uint64_t>(clipped) * 2 + (keeps_norms ? 1 : 0));
  for (const double number : {clip_norm, clip_value, ema_decay})
    digest = base::mix64(digest ^ std::bit_cast<std::uint64_t>(number));
  return digest;
}

std::string diverged(double norm, std::int64_t step) {
  return fmt::format(
      "the norm of the gradients is {} at step {}: training has diverged; lower the "
      "learning rate or warm it up, or look for bad samples",
      norm, step);
}

void check_scaled(const Trained& trained) {
  if (trained.extras.clip_value > 0 && trained.groups.layer_norm() == LayerNorm::kGradient)
    throw BadInput("LARS with clipping by value and a scaler: leave out one of the three");
}

void check_measured(const Trained& trained) {
  if (trained.extras.clip_value > 0)
    throw BadInput(
        "the noise scale cannot be measured with clipping by value: leave out one of the two");
}

void check_wrapped(const Extras& extras) {
  if (extras.ema_decay > 0)
    throw BadInput("set_ema() is not for optim::Wrapped: let the wrapped optimizer keep averages");
}

Said say_step(const Trained& trained, const GradientSource& source) {
  replica::Replicated& model = *trained.model;
  Said said;
  try {
    model.settle();
  } catch (const BadInput&) {
    said.cannot = std::current_exception();
  }
  const auto steps = static_cast<std::uint64_t>(trained.groups.steps());
  const bool samples = can_sample(model) && model.comm().size() > 1 && source.is(model.averages());
  const std::uint64_t sample =
      samples ? replica::sample_lines(model.averages(), model.layout(), steps) : 0;
  const std::uint64_t written = model.parts().parameters->look();
  if (model.hosts_shards() && written != 0 && !said.cannot)
    said.cannot = std::make_exception_ptr(written_in_loop(model.attachment().name()));
  const StepNote mine{model.identity().number,
                      steps,
                      trained.groups.digest_of_rates() ^ trained.also.rates,
                      trained.extras.digest() ^ trained.also.extras,
                      sample ^ digest_of(trained.absent()),
                      said.cannot ? 1U : 0U,
                      model.parts().options.check_weights ? written : 0,
                      std::bit_cast<std::uint64_t>(source.scale.value_or(0))};
  said.all = model.identity().announcements->say(mine.record(), "optimizer.step()");
  return said;
}

std::chrono::nanoseconds hear_step(const Trained& trained, const Said& said) {
  const auto began = std::chrono::steady_clock::now();
  said.all->wait();
  const std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - began;
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
      trained.model->identity().announcements->disagree(
          Mismatch(fmt::format("optimizer.step() differs between rank 0 and rank {}: {}; do the "
                               "same on every worker",
                               rank, difference),
                   {0, rank}));
    }
  }
  return waited;
}

}  // namespace lockstep::optim

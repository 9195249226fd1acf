#include "torch/optim/step_note.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <bit>
#include <cstdint>
#include <string>

#include "torch/optim/device_choice.h"
#include "torch/replica/weight_sample.h"

namespace lockstep::optim {
namespace {

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

Said say_step(const Trained& trained, const GradientSource& source) {
  replica::Replicated& model = *trained.model;
  Said said;
  try {
    model.settle();
  } catch (const BadInput&) {
    said.cannot = std::current_exception();
  }
  const auto steps = static_cast<std::uint64_t>(trained.groups.steps());
  const bool samples = can_sample(model) && model.comm().size() > 1 && source.is(model.gradients());
  const StepNote mine{model.identity().number,
                      steps,
                      trained.groups.digest_of_rates(),
                      std::bit_cast<std::uint64_t>(trained.clip_norm),
                      samples ? replica::sample_lines(model.gradients(), model.layout(), steps) : 0,
                      said.cannot ? 1U : 0U};
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

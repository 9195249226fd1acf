#include "torch/replica/pass_note.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <bit>

namespace lockstep::replica {
namespace {

// The ranks whose note differs from rank 0's in one thing.
template <typename Member>
std::vector<int> others(const std::vector<PassNote>& notes, Member PassNote::*member) {
  std::vector<int> ranks;
  for (std::size_t r = 1; r < notes.size(); ++r) {
    if (notes[r].*member != notes[0].*member) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

}  // namespace

control::Record PassNote::record() const {
  control::Record record{replica, pass};
  for (std::size_t i = 0; i < weights.size(); ++i)
    record[2 + i] = std::bit_cast<std::uint64_t>(weights[i]);
  record[5] = sample;
  return record;
}

PassNote PassNote::of(const control::Record& record) {
  PassNote note{record[0], record[1], {}, record[5]};
  for (std::size_t i = 0; i < note.weights.size(); ++i)
    note.weights[i] = std::bit_cast<double>(record[2 + i]);
  return note;
}

std::optional<Mismatch> difference_of(const std::vector<PassNote>& notes,
                                      const std::string& model) {
  if (const auto ranks = others(notes, &PassNote::replica); !ranks.empty()) {
    return Mismatch(
        fmt::format("workers synchronise different models: rank 0 is in a backward pass of replica "
                    "{}, {} of replica {} ({} here); make replicas in the same order on every "
                    "worker, and run their backward passes in the same order",
                    notes[0].replica, ranks_text(ranks),
                    notes[static_cast<std::size_t>(ranks.front())].replica, model),
        ranks);
  }
  if (const auto ranks = others(notes, &PassNote::sample); !ranks.empty()) {
    return Mismatch(
        fmt::format(
            "the weights of {} differ between rank 0 and {} at backward pass {}: an optimizer "
            "took another step there (another learning rate, a step more or fewer), or only "
            "some workers loaded or changed parameters; do the same on every worker, or use "
            "lockstep::optim and lockstep::load",
            model, ranks_text(ranks), notes[0].pass),
        ranks);
  }
  return std::nullopt;
}

}  // namespace lockstep::replica

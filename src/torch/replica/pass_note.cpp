#include "torch/replica/pass_note.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/hash.h"

namespace lockstep::replica {
namespace {

constexpr std::size_t kLine = 64;

std::uint64_t digest_of_line(const torch::Tensor& tensor, std::uint64_t choice) {
  const std::size_t bytes = tensor.nbytes();
  const std::size_t lines = (bytes + kLine - 1) / kLine;
  const std::size_t first = choice % lines * kLine;
  std::array<std::uint64_t, kLine / 8> line{};
  std::memcpy(line.data(), static_cast<const std::byte*>(tensor.data_ptr()) + first,
              std::min(kLine, bytes - first));
  std::uint64_t digest = 0;
  for (const std::uint64_t word : line) digest = base::mix64(digest ^ word);
  return digest;
}

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

std::uint64_t sample_weights(const std::vector<NamedTensor>& parameters, std::uint64_t pass) {
  std::uint64_t digest = 1;
  std::uint64_t choice = base::mix64(pass);
  for (const auto& [name, tensor] : parameters) {
    choice = base::mix64(choice);
    if (tensor.numel() == 0 || tensor.layout() != torch::kStrided ||
        !tensor.is_non_overlapping_and_dense())
      continue;
    digest = base::mix64(digest ^ digest_of_line(tensor, choice));
  }
  return digest | 1;
}

void compare_notes(const std::vector<PassNote>& notes, const std::string& model) {
  if (const auto ranks = others(notes, &PassNote::replica); !ranks.empty()) {
    throw Mismatch(
        fmt::format("workers synchronise different models: rank 0 is in a backward pass of replica "
                    "{}, {} of replica {} ({} here); make replicas in the same order on every "
                    "worker, and run their backward passes in the same order",
                    notes[0].replica, ranks_text(ranks),
                    notes[static_cast<std::size_t>(ranks.front())].replica, model),
        ranks);
  }
  if (const auto ranks = others(notes, &PassNote::sample); !ranks.empty()) {
    throw Mismatch(
        fmt::format(
            "the weights of {} differ between rank 0 and {} at backward pass {}: an optimizer "
            "took another step there (another learning rate, a step more or fewer), or only "
            "some workers loaded or changed parameters; do the same on every worker, or use "
            "lockstep::optim and lockstep::load",
            model, ranks_text(ranks), notes[0].pass),
        ranks);
  }
}

}  // namespace lockstep::replica

#include "torch/optim/update.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>

namespace lockstep::optim {
namespace {

// A memory where the host can read it.
class OnHost {
 public:
  explicit OnHost(const replica::FlatMemory& memory)
      : copy_(memory.as_tensor(torch::kUInt8, 0, memory.bytes()).cpu()),
        data_(static_cast<const std::byte*>(copy_.data_ptr())) {}
  const std::byte* at(const plan::Entry& entry, std::size_t element) const {
    return data_ + entry.offset + element * size_of(entry.dtype);
  }

 private:
  torch::Tensor copy_;  // itself, if it is there
  const std::byte* data_;
};

// Of pieces of the parameters and of the states that their rules have.
class AtRest {
 public:
  explicit AtRest(const Trained& trained)
      : trained_(trained),
        parameters_(trained.model->parameters()),
        states_(trained.state.memories().begin(), trained.state.memories().end()) {}

  flat::Parity operator()(const plan::Stretch& piece) const {
    const plan::Entry& entry = trained_.model->layout().entries()[piece.entry];
    const plan::Entry& kept = trained_.state.layout().entries()[piece.entry];
    flat::Parity seen = flat::parity(entry.dtype, parameters_.at(entry, piece.first), piece.count);
    const auto used = static_cast<std::size_t>(trained_.groups.rule_of(piece.entry).states());
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const bool is_master = i == trained_.state.count();
      if (is_master ? kept.dtype == entry.dtype : i >= used) continue;
      seen ^= flat::parity(kept.dtype, states_[i].at(kept, piece.first), piece.count);
    }
    return seen;
  }

 private:
  const Trained& trained_;
  OnHost parameters_;
  std::vector<OnHost> states_;
};

}  // namespace

flat::Parity Update::parity_at_rest(const plan::Stretch& piece) const {
  return AtRest(trained_)(piece);
}

void Update::check_at_rest() {
  collect();
  if (!watch_.on() || !watch_.knows()) return;
  const AtRest at_rest(trained_);
  for (std::size_t number = watch_.own().begin; number < watch_.own().end; ++number)
    watch_.expect(number, at_rest(trained_.model->pieces().all[number]));
}

void Update::bump_versions() {
  for (std::size_t entry = 0; entry < trained_.groups.entries(); ++entry)
    torch::autograd::impl::bump_version(trained_.parameter(entry));
}

std::string diverged(double norm, std::int64_t step) {
  return fmt::format(
      "the norm of the gradients is {} at step {}: training has diverged; lower the "
      "learning rate or warm it up, or look for bad samples",
      norm, step);
}

}  // namespace lockstep::optim

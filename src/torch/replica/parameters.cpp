#include "torch/replica/parameters.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "torch/replica/tensors.h"
#include "torch/replica/weight_sample.h"

namespace lockstep::replica {
namespace {

class OneCopy : public Parameters {
 public:
  OneCopy(Comm& comm, std::vector<NamedTensor> trained, const plan::Layout& layout,
          FlatMemory memory)
      : Parameters(std::move(trained), layout, std::move(memory)) {
    move_in(comm.rank() == 0 ? Values::kCopied : Values::kLeft);
    comm.barrier().wait();  // nobody reads before rank 0 has written
  }

  // Nothing to copy: all workers read the memory that was written.
  void publish(const plan::Stretch&) const override {}
  void acquire(Comm& comm) override { comm.barrier().wait(); }

  // If a program writes to its parameters, by an optimizer of torch::optim or by hand, every worker
  // writes to the one copy, one after the other or at once. To notice that, a sample of the values
  // is kept.
  void note_values() override { noted_ = sample_lines(memory_, layout_, 0); }
  void forget_values() override { noted_.reset(); }
  bool written_by_others() const override {
    return noted_ && *noted_ != sample_lines(memory_, layout_, 0);
  }

 private:
  void put_back(std::size_t entry) override {
    throw BadInput(fmt::format(
        "{} was given other memory, and the workers of this host share one copy of it: load it "
        "with lockstep::load, on all workers",
        trained_[entry].name));
  }

  std::optional<std::uint64_t> noted_;  // the sample
};

class PrivateCopies : public Parameters {
 public:
  PrivateCopies(Comm& comm, std::vector<NamedTensor> trained, const plan::Layout& layout,
                FlatMemory memory)
      : Parameters(std::move(trained), layout, std::move(memory)) {
    for (int worker = 0; worker < comm.size() && memory_.shared(); ++worker) {
      if (worker != comm.rank()) others_.push_back(memory_.of(worker));
    }
    move_in(Values::kCopied);
    // Nobody writes to the copies of others before they have filled them.
    comm.barrier().wait();
  }

  void publish(const plan::Stretch& stretch) const override {
    const plan::Entry& entry = layout_.entries()[stretch.entry];
    const std::size_t offset = entry.offset + stretch.first * size_of(entry.dtype);
    for (std::byte* const other : others_)
      std::memcpy(other + offset, memory_.data() + offset, stretch.count * size_of(entry.dtype));
  }

  // If nobody else writes to this copy, there is nothing to wait for.
  void acquire(Comm& comm) override {
    if (!others_.empty()) comm.barrier().wait();
  }

  std::unique_ptr<Parameters> as_one_copy(Comm& comm) const override {
    if (others_.empty()) return nullptr;
    return std::make_unique<OneCopy>(comm, trained_, layout_,
                                     FlatMemory(comm, layout_.bytes(), Copies::kPerHost));
  }

 private:
  void put_back(std::size_t entry) override {
    torch::NoGradGuard no_grad;
    torch::Tensor& parameter = trained_[entry].tensor;
    views_[entry].copy_(parameter.detach());
    parameter.set_data(views_[entry]);
  }

  std::vector<std::byte*> others_;  // the copies of the other workers; empty if not shared
};

}  // namespace

Parameters::Parameters(std::vector<NamedTensor> trained, const plan::Layout& layout,
                       FlatMemory memory)
    : trained_(std::move(trained)), layout_(layout), memory_(std::move(memory)) {}

void Parameters::move_in(Values values) {
  torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    torch::Tensor& parameter = trained_[i].tensor;
    views_.push_back(memory_.view(layout_.entries()[i], parameter));
    if (values == Values::kCopied) views_.back().copy_(parameter.detach());
    parameter.set_data(views_.back());
  }
}

bool Parameters::holds(std::size_t entry) const {
  const plan::Entry& at = layout_.entries()[entry];
  return at.count == 0 || trained_[entry].tensor.data_ptr() == memory_.data() + at.offset;
}

void Parameters::take_back(std::size_t entry) {
  const auto& [name, parameter] = trained_[entry];
  const torch::Tensor& was = views_[entry];
  if (parameter.scalar_type() != was.scalar_type() || parameter.device() != was.device() ||
      parameter.sizes() != was.sizes()) {
    throw BadInput(fmt::format(
        "{} is {} on {} now and was {} on {} at data_parallel(): move, convert or resize the "
        "module "
        "before data_parallel(), not after",
        name, describe(parameter), parameter.device().str(), describe(was), was.device().str()));
  }
  put_back(entry);
}

std::unique_ptr<Parameters> make_parameters(Comm& comm, const std::vector<NamedTensor>& trained,
                                            const plan::Layout& layout, Copies copies,
                                            Device device) {
  std::vector<NamedTensor> by_entry;
  for (const plan::Entry& entry : layout.entries()) by_entry.push_back(trained[entry.registered]);
  FlatMemory memory(comm, layout.bytes(), copies, device);
  if (copies == Copies::kPerHost && memory.shared())
    return std::make_unique<OneCopy>(comm, std::move(by_entry), layout, std::move(memory));
  return std::make_unique<PrivateCopies>(comm, std::move(by_entry), layout, std::move(memory));
}

}  // namespace lockstep::replica

#include "torch/replica/parameters.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "torch/replica/host_copy.h"
#include "torch/replica/tensors.h"

namespace lockstep::replica {
namespace {

class PrivateCopies : public Parameters {
 public:
  PrivateCopies(Comm& comm, std::vector<NamedTensor> trained, const plan::Layout& layout,
                FlatMemory memory)
      : Parameters(std::move(trained), layout, std::move(memory)) {
    for (int worker = 0; worker < comm.size() && memory_.shared(); ++worker) {
      if (worker != comm.rank()) others_.push_back(memory_.of(worker));
    }
    copy_in();
    // Nobody writes to the copies of others before they have filled them.
    comm.barrier().wait();
    show(memory_);
  }

  void publish(const plan::Stretch& stretch) const override {
    const plan::Entry& entry = layout_.entries()[stretch.entry];
    const std::size_t offset = entry.offset + stretch.first * size_of(entry.dtype);
    for (std::byte* const other : others_)
      std::memcpy(other + offset, memory_.data() + offset, stretch.count * size_of(entry.dtype));
  }

  // If nobody else writes to this copy, there is nothing to wait for.
  void acquire(Comm& host, const std::vector<bool>&) override {
    if (!others_.empty()) host.barrier().wait();
  }

 private:
  std::vector<std::byte*> others_;  // the copies of the other workers; empty if not shared
};

class OneCopy : public Parameters {
 public:
  OneCopy(Comm& host, std::vector<NamedTensor> trained, const plan::Layout& layout,
          std::unique_ptr<HostCopy> copy)
      : Parameters(std::move(trained), layout, copy->shared()), copy_(std::move(copy)) {
    if (host.rank() == 0) copy_in();
    host.barrier().wait();  // nobody reads before rank 0 has written
    show(copy_->seen());
  }

  const FlatMemory& seen() const override { return copy_->seen(); }

  std::uint64_t look() override {
    copy_->look();
    return copy_->digest();
  }
  void begin_update(base::ByteRange own) override { copy_->bring(own); }
  // Nothing to copy: all workers read the memory that was written.
  void publish(const plan::Stretch&) const override {}
  void acquire(Comm& host, const std::vector<bool>& left_alone) override {
    host.barrier().wait();
    renew(left_alone);
  }
  void renew(const std::vector<bool>& left_alone) override {
    std::vector<base::ByteRange> kept;
    for (std::size_t i = 0; i < left_alone.size(); ++i) {
      const plan::Entry& entry = layout_.entries()[i];
      if (left_alone[i]) kept.push_back({entry.offset, entry.offset + entry.bytes()});
    }
    copy_->renew(kept);
  }

  void share_values(const Workers& workers) override {
    Comm& comm = workers.all;
    std::vector<std::int64_t> digests(static_cast<std::size_t>(comm.size()));
    digests[static_cast<std::size_t>(comm.rank())] = static_cast<std::int64_t>(look());
    comm.all_gather({digests.data(), digests.size(), DType::kInt64}).wait();
    for (std::size_t i = 0; i < digests.size(); ++i) {
      const int rank = static_cast<int>(i);
      if (digests[i] == digests[0]) continue;
      throw Mismatch(
          fmt::format("rank 0 and rank {} have written different values to parameters: do the "
                      "same on every worker",
                      rank),
          {0, rank});
    }
    bring(workers.host);
  }
  void share_on_host(Comm& host) override {
    look();
    bring(host);
  }

 private:
  // After look().
  void bring(Comm& host) {
    if (host.rank() == 0) copy_->bring({0, memory_.bytes()});
    host.barrier().wait();
    copy_->renew();
  }

  std::unique_ptr<HostCopy> copy_;
};

std::vector<NamedTensor> by_entry(const std::vector<NamedTensor>& trained,
                                  const plan::Layout& layout) {
  std::vector<NamedTensor> sorted;
  for (const plan::Entry& entry : layout.entries()) sorted.push_back(trained[entry.registered]);
  return sorted;
}

}  // namespace

Parameters::Parameters(std::vector<NamedTensor> trained, const plan::Layout& layout,
                       FlatMemory memory)
    : trained_(std::move(trained)), layout_(layout), memory_(std::move(memory)) {}

void Parameters::copy_in() {
  torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    const torch::Tensor& parameter = trained_[i].tensor;
    memory_.view(layout_.entries()[i], parameter).copy_(parameter.detach());
  }
}

void Parameters::show(const FlatMemory& seen) {
  torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    torch::Tensor& parameter = trained_[i].tensor;
    views_.push_back(seen.view(layout_.entries()[i], parameter));
    parameter.set_data(views_.back());
  }
}

bool Parameters::holds(std::size_t entry) const {
  return layout_.entries()[entry].count == 0 ||
         trained_[entry].tensor.data_ptr() == views_[entry].data_ptr();
}

void Parameters::take_back(std::size_t entry) {
  auto& [name, parameter] = trained_[entry];
  const torch::Tensor& was = views_[entry];
  if (parameter.scalar_type() != was.scalar_type() || parameter.device() != was.device() ||
      parameter.sizes() != was.sizes()) {
    throw BadInput(fmt::format(
        "{} is {} on {} now and was {} on {} at data_parallel(): move, convert or resize the "
        "module "
        "before data_parallel(), not after",
        name, describe(parameter), parameter.device().str(), describe(was), was.device().str()));
  }
  torch::NoGradGuard no_grad;
  views_[entry].copy_(parameter.detach());
  parameter.set_data(views_[entry]);
}

std::unique_ptr<Parameters> make_parameters(const Workers& workers,
                                            const std::vector<NamedTensor>& trained,
                                            const plan::Layout& layout, Device device) {
  auto copy = host_copy_on(device, workers, layout.bytes());
  if (!copy) return nullptr;
  copy->shared().leave_behind(workers.host, FlatMemory::Use::kParameters);
  return std::make_unique<OneCopy>(workers.host, by_entry(trained, layout), layout,
                                   std::move(copy));
}

std::unique_ptr<Parameters> make_private_parameters(Comm& comm,
                                                    const std::vector<NamedTensor>& trained,
                                                    const plan::Layout& layout, Device device) {
  FlatMemory memory(comm, layout.bytes(), Copies::kPerWorker, device);
  memory.leave_behind(comm, FlatMemory::Use::kParameters);
  return std::make_unique<PrivateCopies>(comm, by_entry(trained, layout), layout,
                                         std::move(memory));
}

}  // namespace lockstep::replica

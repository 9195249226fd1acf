#include "torch/replica/weight_sample.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/hash.h"
#include "torch/device/device.h"
#include "torch/replica/parts.h"

namespace lockstep::replica {
namespace {

constexpr std::size_t kWordsOfEach = 16;

// Which 32-bit words of the flat memory to look at: some of each entry, the same on every worker.
torch::Tensor positions_of(const plan::Layout& layout) {
  std::vector<std::int64_t> positions;
  std::uint64_t choice = 1;
  for (const plan::Entry& entry : layout.entries()) {
    const std::size_t words = entry.bytes() / 4;
    for (std::size_t i = 0; i < std::min(words, kWordsOfEach); ++i) {
      choice = base::mix64(choice);
      positions.push_back(static_cast<std::int64_t>(entry.offset / 4 + choice % words));
    }
  }
  return torch::tensor(positions, torch::kInt64);
}

// Shares the memory.
class DeviceWeightSample : public WeightSample {
 public:
  DeviceWeightSample(const plan::Layout& layout, const FlatMemory& memory,
                     std::chrono::milliseconds timeout);

  std::uint64_t take(std::uint64_t pass) override;

 private:
  torch::Tensor words_;                  // all memory of the trained parameters, as 32-bit words
  torch::Tensor positions_;              // of the words in the sample
  torch::Tensor on_host_;                // pinned
  std::optional<device::Event> copied_;  // of the last call
  Device device_;
  std::chrono::milliseconds timeout_;
};

DeviceWeightSample::DeviceWeightSample(const plan::Layout& layout, const FlatMemory& memory,
                                       std::chrono::milliseconds timeout)
    : words_(memory.as_tensor(torch::kInt32, 0, memory.bytes() / 4)),
      positions_(positions_of(layout).to(words_.device())),
      on_host_(torch::empty({positions_.numel()},
                            torch::TensorOptions().dtype(torch::kInt32).pinned_memory(true))),
      device_(memory.device()),
      timeout_(timeout) {}

std::uint64_t DeviceWeightSample::take(std::uint64_t /*pass*/) {
  std::uint64_t digest = 1;
  if (copied_) {
    copied_->wait(Deadline::after(timeout_));
    const auto* const words = static_cast<const std::uint32_t*>(on_host_.data_ptr());
    for (std::int64_t i = 0; i < on_host_.numel(); ++i) digest = base::mix64(digest ^ words[i]);
  } else {
    copied_.emplace();
  }
  torch::NoGradGuard no_grad;
  on_host_.copy_(words_.index_select(0, positions_), /*non_blocking=*/true);
  copied_->record(device::current_stream(device_));
  return digest | 1;
}

}  // namespace

std::unique_ptr<WeightSample> make_device_weight_sample(const Parts& parts) {
  return std::make_unique<DeviceWeightSample>(parts.plan.layout, parts.parameters->memory(),
                                              parts.comm.timeout());
}

}  // namespace lockstep::replica

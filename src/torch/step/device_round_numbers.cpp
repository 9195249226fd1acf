#include <utility>

#include "torch/device/device.h"
#include "torch/step/round_numbers.h"

namespace lockstep::steps {
namespace {

class DeviceRoundNumbers : public RoundNumbers {
 public:
  explicit DeviceRoundNumbers(Device device) : device_(device), side_(device) {
    counts_.reason = "local steps run without CUDA graphs";
  }

  void add_loss(const torch::Tensor& loss, double samples) override;
  void end_round() override;
  std::optional<PhaseResult::Local> known() override { return std::nullopt; }
  PhaseResult::Local bring(Deadline deadline) override;
  std::map<int, double> losses(Deadline deadline) override;

 private:
  void add_to(Sum& to, const torch::Tensor& value, double times) override;
  static std::vector<Sum*> sums_there(Round& round);
  static torch::Tensor together(Round& round);
  static void take(Round& round, const torch::Tensor& on_host);

  Device device_;
  Round last_;
  torch::Tensor
      sums_;  // of the last round, until bring() has taken them; undefined: there are none
  device::Event done_;
  device::SideStream side_;
};

void DeviceRoundNumbers::add_loss(const torch::Tensor& loss, double samples) {
  ++counts_.eager;
  RoundNumbers::add_loss(loss, samples);
}

// A program may report numbers of the host, too.
void DeviceRoundNumbers::add_to(Sum& to, const torch::Tensor& value, double times) {
  if (value.is_cpu()) {
    to.here += times * value.item<double>();
    return;
  }
  const torch::NoGradGuard no_grad;
  const torch::Tensor more = value.detach().reshape(at::IntArrayRef{}).to(torch::kFloat64) * times;
  to.there = to.there.defined() ? to.there.add_(more) : more;
}

void DeviceRoundNumbers::end_round() {
  last_ = std::exchange(round_, {});
  sums_ = together(last_);
  done_.record(device::current_stream(device_));
}

// On a side stream, so as not to wait for what was queued since. The host waits for the round first, as it does for the
// parities of an update.
PhaseResult::Local DeviceRoundNumbers::bring(Deadline deadline) {
  done_.wait(deadline);
  if (const torch::Tensor sums = std::exchange(sums_, {}); sums.defined()) {
    const device::SideStream::Scope scope(side_, device::SideStream::After::kGoesOn);
    take(last_, sums.cpu());
  }
  return read(last_);
}

// The wait has a deadline, and the copy after it has nothing to wait for.
std::map<int, double> DeviceRoundNumbers::losses(Deadline deadline) {
  const torch::Tensor sums = together(round_);
  device::Event here;
  here.record(device::current_stream(device_));
  here.wait(deadline);
  if (sums.defined()) take(round_, sums.cpu());
  return read(round_).weighted_losses;
}

// In this order they come to the host.
std::vector<RoundNumbers::Sum*> DeviceRoundNumbers::sums_there(Round& round) {
  std::vector<Sum*> all;
  const auto look = [&](Sum& sum) {
    if (sum.there.defined()) all.push_back(&sum);
  };
  for (OfShard& of : round) {
    look(of.loss);
    for (auto& [name, report] : of.reports) {
      look(report.sum);
      look(report.weight);
    }
  }
  return all;
}

torch::Tensor DeviceRoundNumbers::together(Round& round) {
  std::vector<torch::Tensor> values;
  for (const Sum* const sum : sums_there(round)) values.push_back(sum->there);
  return values.empty() ? torch::Tensor() : torch::stack(values);
}

void DeviceRoundNumbers::take(Round& round, const torch::Tensor& on_host) {
  const auto* next = static_cast<const double*>(on_host.data_ptr());
  for (Sum* const sum : sums_there(round)) {
    sum->here += *next++;
    sum->there = torch::Tensor();
  }
}

}  // namespace

std::unique_ptr<RoundNumbers> make_device_round_numbers(Device device) {
  return std::make_unique<DeviceRoundNumbers>(device);
}

}  // namespace lockstep::steps

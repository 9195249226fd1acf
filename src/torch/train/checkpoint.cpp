#include "torch/train/checkpoint.h"

#include <fmt/format.h>
#include <lockstep/checkpoint.h>
#include <lockstep/errors.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/files.h"
#include "torch/replica/agreement.h"
#include "torch/replica/model.h"
#include "torch/replica/replicated.h"
#include "torch/train/checkpoint_names.h"
#include "torch/train/leader.h"
#include "torch/train/tensor_file.h"

namespace lockstep::train {
namespace {

constexpr const char* kFormat = "1";
constexpr const char* kFormatKey = "lockstep.format";
constexpr const char* kStepKey = "lockstep.step";
constexpr const char* kOptimizerStepsKey = "lockstep.optimizer_steps";
constexpr const char* kRateKey = "lockstep.learning_rate";

std::vector<NamedTensor> all_tensors(const Replica& model, const optim::Optimizer& optimizer) {
  std::vector<NamedTensor> tensors = model.state()->model().everything();
  for (auto& [name, tensor] : optimizer.state()) tensors.push_back({"optimizer/" + name, tensor});
  return tensors;
}

std::int64_t number_in(const formats::SafetensorsFile& file, const char* key) {
  const auto found = file.metadata().find(key);
  std::int64_t value = -1;
  if (found != file.metadata().end()) {
    const std::string& text = found->second;
    std::from_chars(text.data(), text.data() + text.size(), value);
  }
  if (value < 0) {
    throw BadInput(
        fmt::format("{} says no {}: it is no training checkpoint of Lockstep", file.path(), key));
  }
  return value;
}

double rate_in(const formats::SafetensorsFile& file) {
  const auto found = file.metadata().find(kRateKey);
  const std::string text = found == file.metadata().end() ? "" : found->second;
  double rate = -1;
  std::from_chars(text.data(), text.data() + text.size(), rate);
  if (!(rate >= 0) || !std::isfinite(rate)) {
    throw BadInput(fmt::format("{} says no {}: it is of an earlier version of Lockstep, or damaged",
                               file.path(), kRateKey));
  }
  return rate;
}

void check_job(const formats::SafetensorsFile& file, const Job& job) {
  std::string missing;
  for (const auto& [name, value] : job) {
    const auto found = file.metadata().find(kJobPrefix + name);
    if (found == file.metadata().end()) {
      if (missing.empty()) missing = name;
    } else if (found->second != value) {
      throw Mismatch(fmt::format(
          "the checkpoint {} was made with {} = {} and this job has {}: use the same, or another "
          "checkpoint directory",
          file.path(), name, found->second, value));
    }
  }
  if (missing.empty()) return;
  throw Mismatch(fmt::format(
      "the checkpoint {} does not say {}, and this job has {}: it is of a job without that, or of "
      "an earlier version of Lockstep that did not record it; use another checkpoint directory",
      file.path(), missing, job.at(missing)));
}

void check_finite(const Replica& model, std::int64_t step) {
  for (const auto& [name, tensor] : model.parameters()) {
    if (!tensor.is_floating_point() || torch::isfinite(tensor.detach()).all().item<bool>())
      continue;
    throw BadInput(fmt::format(
        "{} is not finite after step {}: training has diverged; lower the learning rate or warm it "
        "up. The earlier checkpoint is untouched",
        name, step));
  }
}

// Steps done, steps of the optimizer and its learning rate, "12 12 0.05"; empty when there is no checkpoint.
std::string read_on_leader(const std::string& directory, const std::vector<NamedTensor>& tensors,
                           const Job& job) {
  const std::string path = checkpoint_path(directory);
  if (!base::exists(path)) return "";
  const auto file = formats::SafetensorsFile::open(path);
  if (number_in(file, kFormatKey) != std::atoll(kFormat)) {
    throw BadInput(fmt::format("{} is of a newer version of Lockstep: use that to read it", path));
  }
  const std::int64_t step = number_in(file, kStepKey);
  const std::int64_t optimizer_steps = number_in(file, kOptimizerStepsKey);
  file.verify();
  check_job(file, job);
  const double rate = rate_in(file);
  read_tensors(file, tensors);
  return fmt::format("{} {} {}", step, optimizer_steps, rate);
}

}  // namespace

std::string checkpoint_path(const std::string& directory) {
  return base::join_path(directory, kCheckpointFile);
}

void prepare_directory(Comm& comm, const std::string& directory) {
  from_leader(comm, [&]() -> std::string {
    if (!base::make_directories(directory)) {
      throw BadInput(fmt::format("cannot make the checkpoint directory {}: {}", directory,
                                 std::strerror(errno)));
    }
    if (::access(directory.c_str(), W_OK) != 0)
      throw BadInput(fmt::format("cannot write to the checkpoint directory {}", directory));
    return "";
  });
}

void write_checkpoint(Comm& comm, const std::string& directory, const Replica& model,
                      const optim::Optimizer& optimizer, std::int64_t step, const Job& job) {
  from_leader(comm, [&]() -> std::string {
    check_finite(model, step);
    formats::Metadata metadata{{kFormatKey, kFormat},
                               {kStepKey, std::to_string(step)},
                               {kOptimizerStepsKey, std::to_string(optimizer.steps())},
                               {kRateKey, fmt::format("{}", optimizer.lr())}};
    for (const auto& [name, value] : job) metadata[kJobPrefix + name] = value;
    write_tensors(checkpoint_path(directory), all_tensors(model, optimizer), metadata);
    return "";
  });
}

std::int64_t read_checkpoint(Comm& comm, const std::string& directory, Replica& model,
                             optim::Optimizer& optimizer, const Job& job) {
  comm.barrier().wait();  // where workers share memory, nobody computes with it any more
  // Asked for once: an optimizer takes masters anew from parameters that were written to since.
  const std::vector<NamedTensor> tensors = all_tensors(model, optimizer);
  const std::string said =
      from_leader(comm, [&] { return read_on_leader(directory, tensors, job); });
  if (said.empty()) return -1;
  std::int64_t step = 0;
  std::int64_t optimizer_steps = 0;
  double rate = 0;
  const char* const end = said.data() + said.size();
  auto read = std::from_chars(said.data(), end, step);
  read = std::from_chars(read.ptr + 1, end, optimizer_steps);
  std::from_chars(read.ptr + 1, end, rate);
  replica::copy_from_leader(comm, tensors);
  optimizer.set_steps(optimizer_steps);
  if (optimizer.lr() != rate)
    optimizer.set_lr(rate);  // groups keep theirs, to the bit, where nothing changes
  return step;
}

std::string checkpoint_property(Comm& comm, const std::string& directory, const std::string& name) {
  return from_leader(comm, [&]() -> std::string {
    const std::string path = checkpoint_path(directory);
    if (!base::exists(path)) return "";
    const auto file = formats::SafetensorsFile::open(path);
    const auto found = file.metadata().find(kJobPrefix + name);
    return found == file.metadata().end() ? "" : found->second;
  });
}

}  // namespace lockstep::train

namespace lockstep {

void save(const Replica& model, const std::string& path) {
  train::write_tensors(path, model.state()->model().everything(), {});
}

void save(const torch::nn::Module& module, const std::string& path) {
  const auto model = replica::sort_all(replica::parameters_of(module), replica::buffers_of(module));
  train::write_tensors(path, model.everything(), {});
}

void load(Replica& model, const std::string& path) {
  Comm& comm = model.state()->comm();
  const auto tensors = model.state()->model().everything();
  comm.barrier().wait();  // where workers share memory, nobody computes with it any more
  train::from_leader(comm, [&]() -> std::string {
    const auto file = formats::SafetensorsFile::open(path);
    file.verify();
    train::read_tensors(file, tensors);
    return "";
  });
  replica::copy_from_leader(comm, tensors);
}

void load(torch::nn::Module& module, const std::string& path) {
  const auto model = replica::sort_all(replica::parameters_of(module), replica::buffers_of(module));
  const auto file = formats::SafetensorsFile::open(path);
  file.verify();
  train::read_tensors(file, model.everything());
}

}  // namespace lockstep

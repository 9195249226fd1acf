#include "torch/train/checkpoint.h"

#include <fmt/format.h>
#include <lockstep/checkpoint.h>
#include <lockstep/errors.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/environment.h"
#include "base/files.h"
#include "base/log.h"
#include "torch/formats/checkpoint_file.h"
#include "torch/replica/agreement.h"
#include "torch/replica/model.h"
#include "torch/replica/replicated.h"
#include "torch/train/leader.h"
#include "torch/train/tensor_file.h"

namespace lockstep::train {
namespace {

constexpr const char* kFormat = "1";
constexpr const char* kFormatKey = "lockstep.format";
constexpr const char* kOptimizerStepsKey = "lockstep.optimizer_steps";
constexpr const char* kRateKey = "lockstep.learning_rate";

std::vector<NamedTensor> all_tensors(const Replica& model, const optim::Optimizer& optimizer) {
  std::vector<NamedTensor> tensors = replica::inside(model).model().everything();
  for (auto& [name, tensor] : optimizer.state()) tensors.push_back({"optimizer/" + name, tensor});
  return tensors;
}

double rate_in(const formats::SafetensorsFile& file) {
  const auto found = file.metadata().find(kRateKey);
  const auto rate = base::parse_real(found == file.metadata().end() ? "" : found->second);
  if (!rate || *rate < 0) {
    throw BadInput(fmt::format("{} says no {}: it is of an earlier version of Lockstep, or damaged",
                               file.path(), kRateKey));
  }
  return *rate;
}

void check_job(const formats::SafetensorsFile& file, const Job& job) {
  std::string missing;
  for (const auto& [name, value] : job) {
    const auto found = file.metadata().find(formats::kJobPrefix + name);
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
  const auto file = formats::open_checkpoint(directory, formats::Checked::kAll);
  if (!file) return "";
  if (formats::number_in(*file, kFormatKey) != std::atoll(kFormat)) {
    throw BadInput(
        fmt::format("{} is of a newer version of Lockstep: use that to read it", file->path()));
  }
  const std::int64_t step = formats::number_in(*file, formats::kStepKey);
  const std::int64_t optimizer_steps = formats::number_in(*file, kOptimizerStepsKey);
  check_job(*file, job);
  const double rate = rate_in(*file);
  if (!file->header_is_hashed()) {
    base::log(base::LogLevel::kWarn,
              "{} is of an earlier version of Lockstep: its step, its job and the names of its "
              "tensors are not under a checksum, and damage there would not be seen",
              file->path());
  }
  read_tensors(*file, tensors);
  return fmt::format("{} {} {}", step, optimizer_steps, rate);
}

// What to do about a directory that cannot be written.
constexpr const char* kElsewhere =
    "make it writable, or choose another directory (lockstep train --checkpoint DIR)";

void make_writable(const std::string& directory) {
  if (!base::make_directories(directory)) {
    throw BadInput(fmt::format("cannot make the checkpoint directory {}: {}; {}", directory,
                               std::strerror(errno), kElsewhere));
  }
  if (::access(directory.c_str(), W_OK | X_OK) != 0) {
    throw BadInput(fmt::format("cannot write to the checkpoint directory {}: {}; {}", directory,
                               std::strerror(errno), kElsewhere));
  }
}

// A job that was killed may take a moment to end.
constexpr std::chrono::seconds kForOthersToEnd{2};

base::FileLock lock(const std::string& directory) {
  const std::string path = base::join_path(directory, formats::kLockFile);
  auto taken = base::FileLock::take(path, Deadline::after(kForOthersToEnd));
  if (taken) return std::move(*taken);
  const std::string holder = base::FileLock::holder_of(path);
  throw BadInput(
      fmt::format("another job{} is writing to the checkpoint directory {}: end that one first, or "
                  "use another directory",
                  holder.empty() ? "" : " (" + holder + ")", directory));
}

}  // namespace

CheckpointDirectory::CheckpointDirectory(Comm& comm, std::string directory,
                                         ExistingCheckpoint existing, Use use)
    : comm_(comm), directory_(std::move(directory)) {
  if (use == Use::kReads) return;
  from_leader(comm_, [&]() -> std::string {
    make_writable(directory_);
    lock_.emplace(lock(directory_));
    if (existing == ExistingCheckpoint::kRefuse && formats::holds_checkpoint(directory_)) {
      throw BadInput(
          fmt::format("{} holds the checkpoint of a job already: go on from it, replace it, or use "
                      "another directory (TrainerOptions::existing_checkpoint; lockstep train "
                      "--resume, --overwrite)",
                      directory_));
    }
    return "";
  });
}

std::string CheckpointDirectory::path() const {
  return formats::checkpoint_path(directory_);
}

std::optional<base::FileLock> CheckpointDirectory::take_lock() {
  return std::exchange(lock_, std::nullopt);
}

void CheckpointDirectory::write(const Replica& model, const optim::Optimizer& optimizer,
                                std::int64_t step, const Job& job) {
  from_leader(comm_, [&]() -> std::string {
    check_finite(model, step);
    formats::Metadata metadata{{kFormatKey, kFormat},
                               {formats::kStepKey, std::to_string(step)},
                               {kOptimizerStepsKey, std::to_string(optimizer.steps())},
                               {kRateKey, fmt::format("{}", optimizer.lr())}};
    for (const auto& [name, value] : job) metadata[formats::kJobPrefix + name] = value;
    // What another job left is replaced, and none of it kept.
    if (!own_) ::unlink(formats::previous_path(directory_).c_str());
    write_tensors(path(), all_tensors(model, optimizer), metadata,
                  own_ ? formats::kPreviousFile : "");
    own_ = true;
    return "";
  });
}

std::int64_t CheckpointDirectory::read(Replica& model, optim::Optimizer& optimizer,
                                       const Job& job) {
  comm_.barrier().wait();  // where workers share memory, nobody computes with it any more
  // Asked for once: an optimizer takes masters anew from parameters that were written to since.
  const std::vector<NamedTensor> tensors = all_tensors(model, optimizer);
  const std::string said =
      from_leader(comm_, [&] { return read_on_leader(directory_, tensors, job); });
  if (said.empty()) return -1;
  std::int64_t step = 0;
  std::int64_t optimizer_steps = 0;
  double rate = 0;
  const char* const end = said.data() + said.size();
  auto read = std::from_chars(said.data(), end, step);
  read = std::from_chars(read.ptr + 1, end, optimizer_steps);
  std::from_chars(read.ptr + 1, end, rate);
  replica::copy_from_leader(comm_, tensors);
  own_ = true;
  optimizer.set_steps(optimizer_steps);
  if (optimizer.lr() != rate)
    optimizer.set_lr(rate);  // groups keep theirs, to the bit, where nothing changes
  return step;
}

std::string checkpoint_property(Comm& comm, const std::string& directory, const std::string& name) {
  return from_leader(comm, [&]() -> std::string {
    const auto file = formats::open_checkpoint(directory, formats::Checked::kHeader);
    if (!file) return "";
    const auto found = file->metadata().find(formats::kJobPrefix + name);
    return found == file->metadata().end() ? "" : found->second;
  });
}

}  // namespace lockstep::train

namespace lockstep {

void save(const Replica& model, const std::string& path) {
  train::write_tensors(path, replica::inside(model).model().everything(), {});
}

void save(const torch::nn::Module& module, const std::string& path) {
  const auto model = replica::sort_all(replica::parameters_of(module), replica::buffers_of(module));
  train::write_tensors(path, model.everything(), {});
}

void load(Replica& model, const std::string& path) {
  Comm& comm = replica::inside(model).comm();
  const auto tensors = replica::inside(model).model().everything();
  comm.barrier().wait();  // where workers share memory, nobody computes with it any more
  train::from_leader(comm, [&]() -> std::string {
    const auto file = formats::SafetensorsFile::open(path);
    file.verify();
    train::read_tensors(file, tensors);
    return "";
  });
  replica::copy_from_leader(comm, tensors);
  replica::inside(model).note_update();
}

void load(torch::nn::Module& module, const std::string& path) {
  const auto model = replica::sort_all(replica::parameters_of(module), replica::buffers_of(module));
  const auto file = formats::SafetensorsFile::open(path);
  file.verify();
  train::read_tensors(file, model.everything());
}

}  // namespace lockstep

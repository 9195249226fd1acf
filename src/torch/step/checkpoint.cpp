#include "torch/step/checkpoint.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "base/atomic_file.h"
#include "base/environment.h"
#include "base/files.h"
#include "base/log.h"
#include "formats/checkpoint_file.h"
#include "torch/replica/model.h"
#include "torch/step/data_record.h"
#include "torch/step/tensor_file.h"

namespace lockstep::steps {
namespace {

constexpr const char* kFormat = "1";
constexpr const char* kFormatKey = "lockstep.format";
constexpr const char* kValuePrefix = "lockstep.";

// The values that a state asks for.
std::map<std::string, double> values_in(const formats::SafetensorsFile& file,
                                        const JobState& state) {
  std::map<std::string, double> values;
  for (const auto& [name, now] : state.values()) {
    const auto found = file.metadata().find(kValuePrefix + name);
    const auto value = base::parse_real(found == file.metadata().end() ? "" : found->second);
    if (!value || *value < 0) {
      throw BadInput(
          fmt::format("{} says no {}: it is of an earlier version of Lockstep, or damaged",
                      file.path(), kValuePrefix + name));
    }
    values[name] = *value;
  }
  return values;
}

// What the job of the checkpoint had, and this one has not. The data are compared elsewhere.
void check_left_out(const formats::SafetensorsFile& file, const Properties& job) {
  const std::string prefix = formats::kJobPrefix;
  for (const auto& [key, value] : file.metadata()) {
    if (!key.starts_with(prefix)) continue;
    const std::string name = key.substr(prefix.size());
    if (job.contains(name) || name == kDataSampled || name == kDataWhole || name == kDataSampling)
      continue;
    throw Mismatch(fmt::format(
        "the checkpoint {} was made with {} = {} and this job has no {}: use the same, or another "
        "checkpoint directory",
        file.path(), name, value, name));
  }
}

void check_job(const formats::SafetensorsFile& file, const Properties& job) {
  std::string missing;
  for (const auto& [name, value] : job) {
    const auto found = file.metadata().find(formats::kJobPrefix + name);
    if (found == file.metadata().end()) {
      if (missing.empty()) missing = name;
    } else if (found->second != value) {
      throw Mismatch(fmt::format(
          "the checkpoint {} was made with {} = {} and this job has {}: use the same{}, or another "
          "checkpoint directory",
          file.path(), name, found->second, value,
          name == "threads" ? " (OMP_NUM_THREADS and OPENBLAS_NUM_THREADS; lockstep run sets both)"
                            : ""));
    }
  }
  if (missing.empty()) return check_left_out(file, job);
  throw Mismatch(fmt::format(
      "the checkpoint {} does not say {}, and this job has {}: it is of a job without that, or of "
      "an earlier version of Lockstep that did not record it; use another checkpoint directory",
      file.path(), missing, job.at(missing)));
}

void check_finite(const JobState& state, std::int64_t step) {
  for (const auto& [name, tensor] : state.finite()) {
    if (!tensor.is_floating_point() || torch::isfinite(tensor.detach()).all().item<bool>())
      continue;
    throw BadInput(fmt::format(
        "{} is not finite after step {}: training has diverged; lower the learning rate or warm it "
        "up. The earlier checkpoint is untouched",
        name, step));
  }
}

// The step and each value of the state, as_lines(); empty if there is no checkpoint.
std::string values_on_leader(const std::optional<formats::SafetensorsFile>& file,
                             const JobState& state, const Properties& job) {
  if (!file) return "";
  if (formats::number_in(*file, kFormatKey) != std::atoll(kFormat)) {
    throw BadInput(
        fmt::format("{} is of a newer version of Lockstep: use that to read it", file->path()));
  }
  std::map<std::string, std::string> said{
      {"step", std::to_string(formats::number_in(*file, formats::kStepKey))}};
  check_job(*file, job);
  for (const auto& [name, value] : values_in(*file, state)) said[name] = fmt::format("{}", value);
  if (!file->header_is_hashed()) {
    base::log(base::LogLevel::kWarn,
              "{} is of an earlier version of Lockstep: its step, its job and the names of its "
              "tensors are not under a checksum, and damage there would not be seen",
              file->path());
  }
  return as_lines(said);
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

// A job that was killed holds its lock until its process has ended.
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
    : comm_(comm), directory_(std::move(directory)), use_(use) {
  if (use_ == Use::kReads) return;
  from_leader(comm_, [&]() -> std::string {
    make_writable(directory_);
    lock_.emplace(lock(directory_));
    if (existing == ExistingCheckpoint::kRefuse && formats::holds_checkpoint(directory_)) {
      throw BadInput(fmt::format(
          "{} holds the checkpoint of a job already: go on from it, replace it, or use "
          "another directory (existing_checkpoint = kResume or kReplace; lockstep train "
          "--resume, --overwrite)",
          directory_));
    }
    // Its constructor removes what a killed writer left under a hidden name. This job may never write.
    const base::AtomicFile leaves_no_trace(path());
    return "";
  });
}

void CheckpointDirectory::rebind() {
  if (use_ == Use::kReads) return;
  if (comm_.rank() != 0) lock_.reset();
  from_leader(comm_, [&]() -> std::string {
    make_writable(directory_);
    if (!lock_ && !given_) lock_.emplace(lock(directory_));
    return "";
  });
}

std::string CheckpointDirectory::path() const {
  return formats::checkpoint_path(directory_);
}

std::optional<base::FileLock> CheckpointDirectory::take_lock() {
  given_ = given_ || lock_;
  return std::exchange(lock_, std::nullopt);
}

void CheckpointDirectory::write(const JobState& state, std::int64_t step, const Properties& job) {
  from_leader(comm_, [&]() -> std::string {
    check_finite(state, step);
    formats::Metadata metadata{{kFormatKey, kFormat}, {formats::kStepKey, std::to_string(step)}};
    for (const auto& [name, value] : state.values()) metadata[kValuePrefix + name] = value;
    for (const auto& [name, value] : job) metadata[formats::kJobPrefix + name] = value;
    // The checkpoints of another job are replaced: none stays as this job's previous one.
    if (!own_) ::unlink(formats::previous_path(directory_).c_str());
    write_tensors(path(), state.tensors(), metadata, own_ ? formats::kPreviousFile : "");
    own_ = true;
    return "";
  });
}

std::int64_t CheckpointDirectory::read(JobState& state, const Properties& job) {
  comm_.barrier().wait();  // workers that share memory no longer compute with it
  std::optional<formats::SafetensorsFile> file;  // on the leader
  const std::string said = from_leader(comm_, [&] {
    file = formats::open_checkpoint(directory_, formats::Checked::kAll);
    return values_on_leader(file, state, job);
  });
  if (said.empty()) return -1;
  const auto values = numbers_in(said);
  state.expect(values);
  // Asked for once, before the parameters change: an optimizer that is asked later makes its masters from parameters.
  const std::vector<NamedTensor> tensors = state.tensors();
  comm_.barrier()
      .wait();  // where workers share masters, all have been asked before the leader reads
  from_leader(comm_, [&]() -> std::string {
    read_tensors(*file, tensors);
    return "";
  });
  replica::copy_from(comm_, 0, tensors);
  own_ = true;
  state.set_values(values);
  return static_cast<std::int64_t>(values.at("step"));
}

std::string checkpoint_property(Comm& comm, const std::string& directory, const std::string& name) {
  return from_leader(comm, [&]() -> std::string {
    const auto file = formats::open_checkpoint(directory, formats::Checked::kHeader);
    if (!file) return "";
    const auto found = file->metadata().find(formats::kJobPrefix + name);
    return found == file->metadata().end() ? "" : found->second;
  });
}

}  // namespace lockstep::steps

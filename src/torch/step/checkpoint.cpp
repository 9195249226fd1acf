#include "torch/step/checkpoint.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "base/atomic_file.h"
#include "base/environment.h"
#include "base/files.h"
#include "base/log.h"
#include "control/faults.h"
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
  if (::access(directory.c_str(), R_OK | W_OK | X_OK) != 0) {
    throw BadInput(fmt::format("cannot read and write the checkpoint directory {}: {}; {}",
                               directory, std::strerror(errno), kElsewhere));
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

// What the thread writes.
struct Write {
  std::string directory;
  int keep = 1;
  std::int64_t step = 0;
  std::vector<NamedTensor> tensors;
  std::set<std::string> finite;  // names of those that must be finite
  formats::Metadata metadata;
  std::shared_ptr<const base::FileLock> lock;

  void run() const {
    for (const auto& [name, tensor] : tensors) {
      if (!finite.contains(name) || all_finite(tensor)) continue;
      throw BadInput(fmt::format(
          "{} is not finite after step {}: training has diverged; lower the learning rate or warm "
          "it up. Earlier checkpoints are untouched",
          name, step));
    }
    write_tensors(formats::checkpoint_path(directory, step), tensors, metadata,
                  [this] { control::Faults::here().strike("file", step); });
    formats::remove_other_checkpoints(directory, step, keep);
  }
};

}  // namespace

CheckpointDirectory::CheckpointDirectory(Comm& comm, CheckpointRules rules)
    : comm_(comm), rules_(std::move(rules)) {
  if (rules_.use == CheckpointRules::Use::kReads) return;
  from_leader(comm_, [&]() -> std::string {
    make_writable(rules_.directory);
    lock_ = std::make_shared<base::FileLock>(lock(rules_.directory));
    if (rules_.existing == ExistingCheckpoint::kRefuse &&
        formats::holds_checkpoint(rules_.directory)) {
      throw BadInput(fmt::format(
          "{} holds the checkpoint of a job already: go on from it, replace it, or use "
          "another directory (existing_checkpoint = kResume or kReplace; lockstep train "
          "--resume, --overwrite)",
          rules_.directory));
    }
    base::remove_unfinished(rules_.directory, std::string(formats::kCheckpointStem));
    return "";
  });
  agree();
}

CheckpointDirectory::~CheckpointDirectory() {
  if (!write_.valid()) return;
  try {
    write_.get();
  } catch (const std::exception& error) {
    base::log(base::LogLevel::kWarn, "the checkpoint of step {} was not written: {}", begun_,
              error.what());
  }
}

void CheckpointDirectory::rebind() {
  if (rules_.use == CheckpointRules::Use::kReads) return;
  if (comm_.rank() != 0) {
    if (write_.valid()) write_.wait();  // the next leader may write to the same file
    write_ = {};
    lock_.reset();
  }
  from_leader(comm_, [&]() -> std::string {
    make_writable(rules_.directory);
    if (!lock_ && !given_) lock_ = std::make_shared<base::FileLock>(lock(rules_.directory));
    base::remove_unfinished(rules_.directory, std::string(formats::kCheckpointStem));
    return "";
  });
  agree();
}

// If a worker was lost in begin() or finish(), some may have heard what the leader did, and others not.
void CheckpointDirectory::agree() {
  std::int64_t known[] = {on_disk_, write_.valid() ? begun_ : -1};
  comm_.all_reduce({known, std::size(known), DType::kInt64}, {.op = ReduceOp::kMax}).wait();
  on_disk_ = known[0];
  begun_ = std::max(known[0], known[1]);
  if (on_disk_ >= 0) path_ = formats::checkpoint_path(rules_.directory, on_disk_);
}

bool CheckpointDirectory::is_due() {
  if (rules_.every_s <= 0 || rules_.use == CheckpointRules::Use::kReads) return false;
  const auto now = Clock::now();
  if (!since_) since_ = now;
  return comm_.rank() == 0 && now - *since_ >= std::chrono::duration<double>(rules_.every_s);
}

bool CheckpointDirectory::has_ended() const {
  return write_.valid() && write_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

std::shared_ptr<const base::FileLock> CheckpointDirectory::take_lock() {
  given_ = given_ || lock_;
  taken_ = lock_;
  return std::exchange(lock_, nullptr);
}

void CheckpointDirectory::begin(const JobState& state, std::int64_t step, const Properties& job) {
  from_leader(comm_, [&]() -> std::string {
    formats::Metadata metadata{{kFormatKey, kFormat}, {formats::kStepKey, std::to_string(step)}};
    for (const auto& [name, value] : state.values()) metadata[kValuePrefix + name] = value;
    for (const auto& [name, value] : job) metadata[formats::kJobPrefix + name] = value;
    copy_tensors(state.tensors(), copies_);
    // The checkpoints of another job are replaced: none stays as an earlier one of this job.
    Write write{rules_.directory,    begun_ < 0 ? 1 : rules_.keep, step, copies_, {},
                std::move(metadata), lock_ ? lock_ : taken_.lock()};
    for (const NamedTensor& named : state.finite()) write.finite.insert(named.name);
    write_ = std::async(std::launch::async, [write = std::move(write)] { write.run(); });
    begun_ =
        step;  // here, too: if a worker is lost before all have heard of it, agree() tells them
    return "";
  });
  begun_ = step;
  since_ = Clock::now();
}

void CheckpointDirectory::finish() {
  const std::int64_t step = std::exchange(begun_, on_disk_);
  from_leader(comm_, [&]() -> std::string {
    write_.get();
    return "";
  });
  begun_ = on_disk_ = step;
  path_ = formats::checkpoint_path(rules_.directory, step);
}

std::int64_t CheckpointDirectory::read(JobState& state, const Properties& job) {
  comm_.barrier().wait();  // workers that share memory no longer compute with it
  std::optional<formats::SafetensorsFile> file;  // on the leader
  const std::string said = from_leader(comm_, [&] {
    if (write_.valid()) write_.wait();
    file = formats::open_checkpoint(rules_.directory, formats::Checked::kAll);
    return values_on_leader(file, state, job);
  });
  if (said.empty()) return -1;
  const auto values = numbers_in(said);
  state.expect(values);
  // Asked for once, before the parameters change: an optimizer that is asked later makes its masters from parameters.
  const std::vector<NamedTensor> tensors = state.tensors();
  comm_.barrier()
      .wait();  // where workers share masters, all have been asked before the leader reads
  path_ = from_leader(comm_, [&] {
    read_tensors(*file, tensors);
    return file->path();
  });
  replica::copy_from(comm_, 0, tensors);
  state.set_values(values);
  begun_ = on_disk_ = static_cast<std::int64_t>(values.at("step"));
  return on_disk_;
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

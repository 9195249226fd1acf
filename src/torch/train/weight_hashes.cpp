#include "torch/train/weight_hashes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/atomic_file.h"
#include "base/files.h"
#include "base/hash.h"
#include "torch/replica/tensors.h"
#include "torch/step/data_record.h"
#include "torch/step/tensor_file.h"

namespace lockstep::train {
namespace {

std::uint64_t hash_of(const torch::Tensor& tensor) {
  const torch::Tensor bytes = replica::host_contiguous(tensor.detach());
  const std::string digest = base::sha256(
      {static_cast<const char*>(bytes.data_ptr()), static_cast<std::size_t>(bytes.nbytes())});
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < sizeof(hash); ++i)
    hash = hash << 8 | static_cast<std::uint8_t>(digest[i]);
  return hash;
}

// Which worker hashes which tensor: the largest first, each to the worker that has the fewest bytes so far.
std::vector<int> divide(const std::vector<NamedTensor>& tensors, int workers) {
  std::vector<std::size_t> order(tensors.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return tensors[a].tensor.nbytes() > tensors[b].tensor.nbytes();
  });
  std::vector<std::size_t> load(static_cast<std::size_t>(workers));
  std::vector<int> hasher(tensors.size());
  for (const std::size_t i : order) {
    const auto least = std::min_element(load.begin(), load.end());
    hasher[i] = static_cast<int>(least - load.begin());
    *least += tensors[i].tensor.nbytes() + 64;  // also small tensors take time
  }
  return hasher;
}

// The log of another job must be neither compared nor overwritten. Logs of earlier versions have no data record.
void check_log(const formats::HashLog& log, const std::string& path, const steps::Properties& job,
               const std::vector<NamedTensor>& tensors) {
  const auto property = [](const steps::Properties& of, const std::string& name) -> std::string {
    const auto found = of.find(name);
    return found == of.end() ? "nothing" : found->second;
  };
  steps::Properties names_of_both = job;
  names_of_both.insert(log.job.begin(), log.job.end());
  for (const auto& [name, value] : names_of_both) {
    const std::string theirs = property(log.job, name);
    const std::string ours = property(job, name);
    if (theirs == ours || (name == steps::kDataSampled && !log.job.contains(name))) continue;
    throw Mismatch(fmt::format(
        "the log {} is of a job with {} = {} and this one has {}: use the same options, or another "
        "file",
        path, name, theirs, ours));
  }
  std::vector<std::string> names;
  names.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  if (names != log.tensors)
    throw Mismatch(fmt::format("the log {} is of a model with other tensors", path));
}

bool are_one_file(const std::string& a, const std::string& b) {
  struct stat of_a {};
  struct stat of_b {};
  return ::stat(a.c_str(), &of_a) == 0 && ::stat(b.c_str(), &of_b) == 0 &&
         of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

}  // namespace

WeightHashes::WeightHashes(Comm& comm, std::vector<NamedTensor> tensors, Files files,
                           const steps::Properties& job)
    : comm_(comm), tensors_(std::move(tensors)), files_(std::move(files)), job_(job) {
  std::sort(tensors_.begin(), tensors_.end(),
            [](const NamedTensor& a, const NamedTensor& b) { return a.name < b.name; });
  hasher_ = divide(tensors_, comm_.size());
}

void WeightHashes::begin(std::int64_t first) {
  const std::string end = steps::from_leader(comm_, [&]() -> std::string {
    if (are_one_file(files_.write_to, files_.compare_with)) {
      throw BadInput(fmt::format(
          "hashes are to be written to {} and compared with it: name two files", files_.write_to));
    }
    std::int64_t known_end = 0;
    if (!files_.compare_with.empty()) known_end = read_known(first);
    if (!files_.write_to.empty()) open(first);
    return std::to_string(known_end);
  });
  compared_end_ = std::atoll(end.c_str());
  record(first - 1);
  compared_ = 0;
}

// Returns the step after the last one of the log.
std::int64_t WeightHashes::read_known(std::int64_t first) {
  known_ = formats::load_hash_log(files_.compare_with);
  check_log(*known_, files_.compare_with, job_, tensors_);
  if (known_->steps.empty() || known_->steps.back().step < first) {
    throw BadInput(fmt::format("the log {} ends before step {}: there is nothing to compare with",
                               files_.compare_with, first));
  }
  return known_->steps.back().step + 1;
}

void WeightHashes::open(std::int64_t first) {
  const std::string& path = files_.write_to;
  formats::HashLog log;
  log.job = job_;
  for (const auto& [name, tensor] : tensors_) log.tensors.push_back(name);
  std::string text = formats::hash_log_head(log);
  if (base::exists(path)) {
    const formats::HashLog before = formats::load_hash_log(path);
    check_log(before, path, job_, tensors_);
    for (const auto& step : before.steps) {
      if (step.step < first - 1) text += formats::hash_log_line(step);
    }
  }
  base::write_file(path, text);
  file_ = base::Fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!file_) throw BadInput(fmt::format("cannot write to {}: {}", path, std::strerror(errno)));
}

std::vector<std::uint64_t> WeightHashes::hashes() {
  std::vector<std::uint64_t> hashes(tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (hasher_[i] == comm_.rank()) hashes[i] = hash_of(tensors_[i].tensor);
  }
  // One worker has each hash, and the others have 0 there.
  comm_.all_reduce({hashes.data(), hashes.size(), DType::kInt64}).wait();
  return hashes;
}

void WeightHashes::record(std::int64_t step) {
  const auto now = hashes();
  const std::string compared = steps::from_leader(comm_, [&]() -> std::string {
    if (file_) write(step, now);
    if (known_) compare(step, now);
    return std::to_string(compared_);
  });
  compared_ = std::atoll(compared.c_str());
}

void WeightHashes::write(std::int64_t step, const std::vector<std::uint64_t>& hashes) {
  const std::string line = formats::hash_log_line({step, hashes});
  const ssize_t written = ::write(file_.get(), line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) return;
  throw Unavailable(fmt::format("cannot write to {}: {}", files_.write_to,
                                written < 0 ? std::strerror(errno) : "the disk is full"));
}

void WeightHashes::compare(std::int64_t step, const std::vector<std::uint64_t>& hashes) {
  const formats::HashLog::Step* const theirs = known_->find(step);
  if (theirs == nullptr) return;
  ++compared_;
  std::size_t different = 0;
  std::string first;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (hashes[i] == theirs->hashes[i]) continue;
    if (different++ == 0) first = tensors_[i].name;
  }
  if (different == 0) return;
  throw Mismatch(fmt::format("{} {} has other bits than in {}{}",
                             step < 0 ? "before the first step" : fmt::format("step {}:", step),
                             first, files_.compare_with,
                             different == 1
                                 ? ""
                                 : fmt::format(", and so have {} of the other {} tensors",
                                               different - 1, hashes.size() - 1)));
}

}  // namespace lockstep::train

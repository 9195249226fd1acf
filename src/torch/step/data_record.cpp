#include "torch/step/data_record.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

#include "base/hash.h"
#include "base/log.h"
#include "torch/replica/agreement.h"
#include "torch/replica/tensors.h"
#include "torch/step/arithmetic.h"

namespace lockstep::steps {
namespace {

constexpr std::int64_t kSampled = 64;
constexpr std::size_t kReadTwice = 8;

Batch read_one(const Dataset& dataset, std::int64_t index) {
  const std::array<std::int64_t, 1> indices{index};
  return data::read(dataset, samples_of(indices));
}

std::string digest(const Batch& batch) {
  std::vector<NamedTensor> tensors;
  if (batch.data.defined()) tensors.push_back({"data", batch.data});
  if (batch.target.defined()) tensors.push_back({"target", batch.target});
  for (auto& [name, tensor] : tensors) {
    if (tensor.layout() != torch::kStrided) tensor = tensor.to_dense();
  }
  return replica::digest(tensors);
}

// The one sample of the batch: "float32 [784] with int64 []".
std::string described(const Batch& batch) {
  const auto one = [](const torch::Tensor& tensor) {
    if (!tensor.defined()) return std::string("nothing");
    return replica::describe(tensor.dim() > 0 && tensor.size(0) > 0 ? tensor.select(0, 0) : tensor);
  };
  return fmt::format("{} with {}", one(batch.data), one(batch.target));
}

// Indices from the first sample to the last, evenly spaced.
std::vector<std::int64_t> spread(std::int64_t samples) {
  const std::int64_t count = std::min(samples, kSampled);
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < count; ++i)
    indices.push_back(count == 1 ? 0 : i * (samples - 1) / (count - 1));
  return indices;
}

// Finds out whether reading seeds LibTorch's default generator. As long as it lives the generator has a seed that no data
// set is likely to use, so that a new seed is seen. It does not look for draws, since other threads may draw meanwhile.
class GeneratorProbe {
 public:
  GeneratorProbe() : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard lock(generator_.mutex());
    saved_ = generator_.get_state();
    generator_.set_current_seed(kSeed);
  }
  ~GeneratorProbe() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(saved_);
  }
  GeneratorProbe(const GeneratorProbe&) = delete;
  GeneratorProbe& operator=(const GeneratorProbe&) = delete;

  bool seeded() {
    const std::lock_guard lock(generator_.mutex());
    return generator_.current_seed() != kSeed;
  }

 private:
  static constexpr std::uint64_t kSeed = 0x70726f6265ULL;

  GeneratorTurn turn_;
  at::Generator generator_;
  torch::Tensor saved_;
};

void check_again(const Dataset& dataset, std::int64_t index, const std::string& expected) {
  GeneratorProbe probe;
  const std::string again = digest(read_one(dataset, index));
  if (probe.seeded()) {
    throw BadInput(fmt::format(
        "reading sample {} seeds LibTorch's default generator (torch::manual_seed), which is the "
        "model's: draw from the sample's generator() instead",
        index));
  }
  if (again == expected) return;
  throw BadInput(fmt::format(
      "sample {} is not the same when it is read again for the same epoch: the data set must not "
      "change, and random numbers must come from the sample's generator() or its seed",
      index));
}

// Looks at some of the first samples of a data set.
std::string sampled(const Dataset& dataset, std::int64_t first) {
  const std::vector<std::int64_t> indices = spread(first);
  std::vector<std::string> digests;
  base::Sha256 all;
  std::string shape;
  for (const std::int64_t index : indices) {
    const Batch batch = read_one(dataset, index);
    if (shape.empty()) shape = described(batch);
    digests.push_back(digest(batch));
    all.update(digests.back());
  }
  const std::size_t stride = std::max<std::size_t>(1, indices.size() / kReadTwice);
  for (std::size_t i = 0; i < indices.size(); i += stride)
    check_again(dataset, indices[i], digests[i]);
  return fmt::format("{} of {} samples, {}, {}", indices.size(), dataset.size(), shape,
                     base::to_hex(all.finish()).substr(0, 32));
}

std::string whole(const Dataset& dataset, const data::PrefetchOptions& prefetch) {
  base::Sha256 all;
  data::Prefetcher samples(
      dataset.size(), [&](std::int64_t index) { return read_one(dataset, index); }, prefetch);
  while (const auto batch = samples.next()) all.update(digest(*batch));
  return base::to_hex(all.finish());
}

[[noreturn]] void refuse_other_data(const std::string& directory, const std::string& then,
                                    const std::string& now) {
  throw Mismatch(
      fmt::format("the training data is not the data that the job in {} began with (then {}; now "
                  "{}): bring back "
                  "the old data, or begin a new job in another checkpoint directory",
                  directory, then, now));
}

[[noreturn]] void refuse_other_sampling(const std::string& directory, const DataRecord& then,
                                        const DataRecord& now) {
  const auto spoken = [](const DataRecord& record) {
    return record.sampling.empty() ? "every sample once per epoch" : record.sampling;
  };
  throw Mismatch(
      fmt::format("the job in {} draws its samples in another way (then {}; now {}): use the same "
                  "weights and draws, or begin a new job in another checkpoint directory",
                  directory, spoken(then), spoken(now)));
}

}  // namespace

DataRecord record_of(const Dataset& dataset, DataReading reading,
                     const data::PrefetchOptions& prefetch) {
  if (dataset.size() < 1) throw BadInput("the training data is empty: nothing to train on");
  DataRecord record;
  record.sampled = sampled(dataset, dataset.size());
  if (reading == DataReading::kWhole) record.whole = whole(dataset, prefetch);
  return record;
}

DataRecord record_of_streams(const data::StreamSet& streams, int shards, std::uint64_t seed,
                             DataReading reading) {
  if (reading == DataReading::kWhole && streams.is_endless()) {
    throw BadInput(
        "streams without an end cannot be compared as a whole: leave verify_data off, or say how "
        "many samples an epoch has");
  }
  const data::StreamReader reader(streams, shards, seed);
  DataRecord record;
  record.sampling = "streams";
  record.sampled = sampled(reader, std::min<std::int64_t>(shards, reader.size()));
  if (reading == DataReading::kWhole) record.whole = whole(reader, data::in_order({}));
  return record;
}

std::string sampling_of(const WeightedSampling& weighted) {
  const auto& weights = weighted.weights;
  if (weights.empty()) return "";
  const std::string_view bytes(reinterpret_cast<const char*>(weights.data()),
                               weights.size() * sizeof(double));
  return fmt::format("{} draws of {} weights {} replacement, {}", weighted.draws, weights.size(),
                     weighted.replacement ? "with" : "without",
                     base::to_hex(base::sha256(bytes)).substr(0, 32));
}

void agree_on_data(Comm& comm, const DataRecord& record) {
  replica::agree(comm,
                 {{"how it is drawn", record.sampling.empty() ? "evenly" : record.sampling},
                  {"a sample of it", record.sampled},
                  {"all of it", record.whole.empty() ? "unread" : record.whole}},
                 {"workers read different training data", "give all of them the same files"});
}

DataRecord continued(Comm& comm, const std::string& directory, const DataRecord& record) {
  const DataRecord then{checkpoint_property(comm, directory, kDataSampled),
                        checkpoint_property(comm, directory, kDataWhole),
                        checkpoint_property(comm, directory, kDataSampling)};
  if (then.sampling != record.sampling) refuse_other_sampling(directory, then, record);
  if (!then.sampled.empty() && then.sampled != record.sampled)
    refuse_other_data(directory, then.sampled, record.sampled);
  if (!then.whole.empty() && !record.whole.empty() && then.whole != record.whole)
    refuse_other_data(directory, "all of it " + then.whole, record.whole);
  if (comm.rank() == 0 && then.sampled.empty()) {
    base::log(base::LogLevel::kWarn,
              "the checkpoint in {} does not say which data its job began with: the data may have "
              "changed since; later checkpoints will say it",
              directory);
  } else if (comm.rank() == 0 && then.whole.empty() && !record.whole.empty()) {
    base::log(
        base::LogLevel::kWarn,
        "the checkpoint in {} knows {} samples of its data, and these have not changed; later "
        "checkpoints will know all samples",
        directory, kSampled);
  }
  return {record.sampled, record.whole.empty() ? then.whole : record.whole, record.sampling};
}

Properties with_data(Properties job, const DataRecord& record) {
  job[kDataSampled] = record.sampled;
  if (!record.whole.empty()) job[kDataWhole] = record.whole;
  if (!record.sampling.empty()) job[kDataSampling] = record.sampling;
  return job;
}

}  // namespace lockstep::steps

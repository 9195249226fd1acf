#include "torch/data/reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>
#include <utility>

#include "plan/seed.h"
#include "torch/data/draws.h"

namespace lockstep {

at::Generator Sample::generator() const {
  return at::detail::createCPUGenerator(seed);
}

std::vector<Sample> samples_of(std::span<const std::int64_t> indices, std::int64_t epoch,
                               std::uint64_t job_seed) {
  std::vector<Sample> samples;
  samples.reserve(indices.size());
  for (const std::int64_t index : indices)
    samples.push_back({index, epoch, plan::sample_seed(job_seed, epoch, index)});
  return samples;
}

namespace data {
namespace {

// How long a GPU may take for tensors that a data set makes there itself.
constexpr std::chrono::minutes kLongestRead{5};

std::string described(const torch::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ", "));
}

void check_alike(const std::vector<torch::Tensor>& tensors, const char* what,
                 std::span<const Sample> samples) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const torch::Tensor& first = tensors.front();
    if (!tensors[i].defined())
      throw BadInput(fmt::format("sample {} has no {}", samples[i].index, what));
    if (tensors[i].sizes() == first.sizes() && tensors[i].dtype() == first.dtype()) continue;
    throw BadInput(fmt::format(
        "samples {} and {} cannot be in one batch: their {} is {} and {}; crop or pad them in the "
        "data set",
        samples.front().index, samples[i].index, what, described(first), described(tensors[i])));
  }
}

}  // namespace

void refuse_unknown_size() {
  throw BadInput(
      "the data set does not say its size: every worker must know how many samples there are");
}

Batch stacked(const std::vector<torch::Tensor>& data, const std::vector<torch::Tensor>& targets,
              std::span<const Sample> samples) {
  if (data.size() != samples.size()) {
    throw BadInput(fmt::format("the data set gave {} examples where {} were asked for", data.size(),
                               samples.size()));
  }
  check_alike(data, "data", samples);
  check_alike(targets, "target", samples);
  return {torch::stack(data), targets.empty() ? torch::Tensor() : torch::stack(targets),
          static_cast<std::int64_t>(samples.size())};
}

std::shared_ptr<const plan::WeightedDraws> draws_of(const WeightedSampling& weighted) {
  if (weighted.weights.empty()) {
    if (weighted.draws == 0 && weighted.replacement) return nullptr;
    throw BadInput("samples are drawn by weight: give WeightedSampling::weights, one for each");
  }
  return std::make_shared<plan::WeightedDraws>(
      weighted.weights,
      plan::DrawOptions{.draws = weighted.draws,
                        .replacement = weighted.replacement ? plan::Replacement::kWith
                                                            : plan::Replacement::kWithout});
}

Batch read(const Dataset& dataset, std::span<const Sample> samples) {
  if (samples.empty()) return {};
  const DrawScope own(samples.front().seed);
  Batch batch = dataset.batch(samples);
  if (batch.samples == static_cast<std::int64_t>(samples.size())) return batch;
  throw BadInput(
      fmt::format("the data set gave a batch that says it has {} samples where {} were asked for: "
                  "return them all, and set Batch::samples",
                  batch.samples, samples.size()));
}

Prefetcher::Prefetcher(std::int64_t end, Read read, const PrefetchOptions& options)
    : read_(std::move(read)),
      end_(end),
      depth_(std::max(options.depth, std::max(options.threads, 1))) {
  try {
    for (int i = 0; i < options.threads; ++i) threads_.emplace_back([this] { run(); });
  } catch (const std::system_error&) {
    stop();
    throw Unavailable("cannot start a loader thread; use fewer, or raise `ulimit -u`");
  }
}

Prefetcher::~Prefetcher() {
  stop();
}

void Prefetcher::stop() {
  {
    const base::Lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (auto& thread : threads_) thread.join();
}

Prefetcher::Result Prefetcher::read_one(std::int64_t number) const {
  try {
    return {read_(number), nullptr};
  } catch (...) {
    return {{}, std::current_exception()};
  }
}

void Prefetcher::run() {
  base::Lock lock(mutex_);
  while (true) {
    while (!stopping_ && to_read_ < end_ && to_read_ >= to_give_ + depth_) lock.wait(changed_);
    if (stopping_ || to_read_ >= end_) return;
    const std::int64_t number = to_read_++;
    Result result;
    {
      const base::Unlock unlocked(mutex_);  // all threads read at once
      result = read_one(number);
    }
    ready_[number] = std::move(result);
    changed_.notify_all();
  }
}

std::optional<Batch> Prefetcher::next() {
  base::Lock lock(mutex_);
  if (to_give_ >= end_) return std::nullopt;
  const std::int64_t number = to_give_++;
  changed_.notify_all();  // a loader thread may read one more
  Result result;
  if (threads_.empty()) {
    result = read_one(number);
  } else {
    while (ready_.count(number) == 0) lock.wait(changed_);
    result = std::move(ready_[number]);
    ready_.erase(number);
  }
  if (result.failure) std::rethrow_exception(result.failure);
  return std::move(result.batch);
}

std::vector<Sample> ShardSamples::of(std::int64_t step, int shard) {
  const base::Lock lock(mutex_);
  const plan::DataOptions& options = batches_.options();
  const std::int64_t epoch = batches_.position(step).epoch;
  auto samples = samples_of(batches_.samples(step, shard), epoch, options.seed);
  if (!options.weights) return samples;
  const auto entries = batches_.entries(step, shard);
  for (std::size_t i = 0; i < samples.size(); ++i)
    samples[i].seed = plan::drawn_sample_seed(options.seed, epoch, entries[i]);
  return samples;
}

Reader::Reader(DatasetPtr dataset, std::int64_t count, Samples samples,
               const PrefetchOptions& prefetch, Device device)
    : dataset_(std::move(dataset)),
      samples_(std::move(samples)),
      has_threads_(prefetch.threads > 0),
      upload_(device::upload_to(device)),
      prefetcher_(
          count, [this](std::int64_t number) { return read_ahead(number); }, prefetch) {}

Batch Reader::read_ahead(std::int64_t number) const {
  const Batch batch = read(*dataset_, samples_(number));
  if (!upload_) return batch;
  return device::ready_to_move(batch, has_threads_, Deadline::after(kLongestRead));
}

std::optional<Batch> Reader::next() {
  if (!upload_) return prefetcher_.next();
  look_ahead();
  if (ahead_) upload_->arrive();
  return std::exchange(ahead_, std::nullopt);
}

void Reader::look_ahead() {
  if (!upload_ || ahead_) return;
  if (const auto batch = prefetcher_.next()) ahead_ = upload_->move(*batch);
}

// If another batch is on its way to the GPU, this one goes behind it on the same stream, and arrive() waits for both.
Batch Reader::again(std::span<const Sample> samples) {
  const Batch batch = read(*dataset_, samples);
  if (!upload_) return batch;
  const Batch moved =
      upload_->move(device::ready_to_move(batch, false, Deadline::after(kLongestRead)));
  upload_->arrive();
  return moved;
}

}  // namespace data
}  // namespace lockstep

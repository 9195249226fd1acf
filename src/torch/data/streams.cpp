#include "torch/data/streams.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "plan/seed.h"
#include "torch/data/draws.h"

namespace lockstep {

void Stream::seek(std::int64_t /*position*/) {
  throw BadInput("a stream has told its position and cannot seek() it: give it both, or neither");
}

DatasetPtr stream_dataset(OpenStream open, const StreamOptions& options) {
  return std::make_shared<data::StreamSet>(std::move(open), options.samples);
}

namespace data {
namespace {

// Samples of an epoch without an end: more than any job reads.
constexpr std::int64_t kEndless = std::int64_t{1} << 50;

// More than loader threads read ahead. Older marks are forgotten.
constexpr std::size_t kMostMarks = 256;

// One for the loader thread, one for reading a batch again.
constexpr std::size_t kMostCursors = 2;

// Of a sample's shapes, types and values. Never 0.
std::int64_t digest_of(const torch::data::Example<>& example) {
  base::Sha256 all;
  for (const torch::Tensor& tensor : {example.data, example.target}) {
    if (!tensor.defined()) continue;
    const torch::Tensor dense =
        (tensor.layout() == torch::kStrided ? tensor : tensor.to_dense()).detach().contiguous();
    all.update(fmt::format("{} [{}]", c10::toString(dense.scalar_type()),
                           fmt::join(dense.sizes().begin(), dense.sizes().end(), ", ")));
    const torch::Tensor here = dense.cpu();
    all.update({static_cast<const char*>(here.data_ptr()), here.nbytes()});
  }
  std::int64_t digest = 0;
  std::memcpy(&digest, all.finish().data(), sizeof(digest));
  return digest == 0 ? 1 : digest;
}

}  // namespace

StreamSet::StreamSet(OpenStream open, std::int64_t samples)
    : open_(std::move(open)), samples_(samples) {
  if (!open_) throw BadInput("a data set of streams wants a function that opens them");
  if (samples < 0 || samples > kEndless) {
    throw BadInput(fmt::format(
        "an epoch of {} samples: give their number, or 0 for streams without an end", samples));
  }
}

std::int64_t StreamSet::size() const {
  return is_endless() ? kEndless : samples_;
}

Batch StreamSet::batch(std::span<const Sample> /*samples*/) const {
  throw BadInput(
      "streams have no samples by number: give them to a loader, a Job or a Trainer as they are, "
      "not "
      "inside another data set");
}

const StreamSet* streams_in(const Dataset& dataset) {
  return dynamic_cast<const StreamSet*>(&dataset);
}

PrefetchOptions in_order(const PrefetchOptions& prefetch) {
  return {std::min(prefetch.threads, 1), prefetch.depth};
}

void refuse_weighted_streams() {
  throw BadInput("streams decide their order themselves: weights are for data sets by number");
}

// An open stream, before an item of an epoch.
struct StreamReader::Cursor {
  std::unique_ptr<Stream> stream;
  std::int64_t epoch = 0;
  std::int64_t item = 0;
  std::int64_t pass = 0;
  bool has_given = false;  // a sample of this pass

  StreamMark mark() const {
    const auto position = stream->position();
    if (position && *position < 0)
      throw BadInput(fmt::format("a stream told the position {}: give 0 or more", *position));
    return {epoch, item, pass, position.value_or(-1)};
  }
};

StreamReader::StreamReader(const StreamSet& set, int shards, std::uint64_t seed)
    : open_(set.open()),
      size_(set.size()),
      shards_(shards),
      seed_(seed),
      streams_(static_cast<std::size_t>(shards)) {}
StreamReader::~StreamReader() = default;

StreamReader::Shard& StreamReader::shard_at(int shard) const {
  return streams_[static_cast<std::size_t>(shard)];
}

Batch StreamReader::batch(std::span<const Sample> samples) const {
  const base::Lock lock(mutex_);
  std::vector<torch::Tensor> data, targets;
  for (const Sample& sample : samples) {
    const Example example = read(sample, data.empty() ? Marks::kYes : Marks::kNo);
    data.push_back(example.data);
    if (example.target.defined() || !targets.empty()) targets.push_back(example.target);
  }
  if (!targets.empty() && targets.size() != data.size())
    throw BadInput("a stream gave samples with a target and samples without one");
  return stacked(data, targets, samples);
}

StreamReader::Example StreamReader::read(const Sample& sample, Marks marks) const {
  const int shard = static_cast<int>(sample.index % shards_);
  const std::int64_t item = sample.index / shards_;
  try {
    Cursor& cursor = cursor_at(shard, sample.epoch, item);
    while (cursor.item < item) take(cursor, shard);
    if (marks == Marks::kNo) return take(cursor, shard);
    StreamMark mark = cursor.mark();
    Example example = take(cursor, shard);
    mark.digest = digest_of(example);
    auto& all = shard_at(shard).marks;
    all.push_back(mark);
    if (all.size() > kMostMarks) all.pop_front();
    return example;
  } catch (...) {
    shard_at(shard).cursors.clear();  // nobody knows where a stream is that has failed
    throw;
  }
}

// The open stream that is nearest before the item, or a new one from the nearest mark. It becomes the first.
StreamReader::Cursor& StreamReader::cursor_at(int shard, std::int64_t epoch,
                                              std::int64_t item) const {
  auto& [cursors, marks] = shard_at(shard);
  auto best = cursors.end();
  for (auto at = cursors.begin(); at != cursors.end(); ++at) {
    const bool usable = at->epoch == epoch && at->item <= item;
    if (usable && (best == cursors.end() || at->item > best->item)) best = at;
  }
  StreamMark nearest{.epoch = epoch};
  for (const StreamMark& mark : marks) {
    const bool usable = mark.epoch == epoch && mark.item <= item && mark.position >= 0;
    if (usable && mark.item > nearest.item) nearest = mark;
  }
  if (best != cursors.end() && best->item >= nearest.item) {
    std::rotate(cursors.begin(), best, best + 1);
    return cursors.front();
  }
  Cursor cursor = opened(shard, nearest);
  if (cursors.size() == kMostCursors) cursors.pop_back();
  cursors.insert(cursors.begin(), std::move(cursor));
  return cursors.front();
}

// At a mark; if that has no position, at the beginning of a pass.
StreamReader::Cursor StreamReader::opened(int shard, const StreamMark& at) const {
  const StreamPlace place{shard, shards_, at.epoch, at.pass,
                          plan::stream_seed(seed_, at.epoch, shard, at.pass)};
  Cursor cursor{open_(place), at.epoch, at.item, at.pass};
  if (!cursor.stream) {
    throw BadInput(fmt::format(
        "no stream was opened for shard {} of {}: return one for every shard", shard, shards_));
  }
  if (at.position >= 0) {
    cursor.stream->seek(at.position);
    cursor.has_given = true;
  }
  return cursor;
}

StreamReader::Example StreamReader::take(Cursor& cursor, int shard) const {
  Example example = next(cursor, shard);
  check(shard, cursor, example);
  ++cursor.item;
  return example;
}

// Whether it is the sample that was there before, if a mark tells.
void StreamReader::check(int shard, const Cursor& cursor, const Example& example) const {
  for (const StreamMark& mark : shard_at(shard).marks) {
    if (mark.epoch != cursor.epoch || mark.item != cursor.item) continue;
    if (mark.digest == 0 || mark.digest == digest_of(example)) return;
    throw BadInput(fmt::format(
        "sample {} of epoch {} in the stream of shard {} of {} is not the same when it is read "
        "again: the data has changed since the checkpoint, or seek() does not go where position() "
        "was told, or two streams of one place differ",
        cursor.item, cursor.epoch, shard, shards_));
  }
}

// What a stream draws depends on the number of the sample, also if the sample is only read to get past it.
StreamReader::Example StreamReader::next(Cursor& cursor, int shard) const {
  const DrawScope own(plan::sample_seed(seed_, cursor.epoch, cursor.item * shards_ + shard));
  while (true) {
    if (auto example = cursor.stream->next()) {
      cursor.has_given = true;
      return std::move(*example);
    }
    if (!cursor.has_given) {
      throw BadInput(
          fmt::format("the stream of shard {} of {} has no samples: give every shard at least one, "
                      "or use fewer shards",
                      shard, shards_));
    }
    cursor = opened(shard, {cursor.epoch, cursor.item, cursor.pass + 1, -1});
  }
}

std::optional<StreamMark> StreamReader::mark(int shard, std::int64_t epoch,
                                             std::int64_t item) const {
  const base::Lock lock(mutex_);
  std::optional<StreamMark> found;
  for (const StreamMark& mark : shard_at(shard).marks) {
    const bool usable = mark.epoch == epoch && mark.item < item;
    if (usable && (!found || mark.item >= found->item)) found = mark;
  }
  return found;
}

void StreamReader::add_mark(int shard, const StreamMark& mark) const {
  const base::Lock lock(mutex_);
  shard_at(shard).marks.push_back(mark);
}

}  // namespace data
}  // namespace lockstep

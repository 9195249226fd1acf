// How streams are read (lockstep/stream.h).
//
//   StreamSet      what stream_dataset() gives: how to open streams, and how many samples an epoch has
//   StreamReader   the same with a number of shards and a seed: a data set whose sample i is item i / S of the stream of
//                  shard i mod S. Asked for in order, it reads each stream once
//   StreamMark     a place in a stream that a checkpoint can keep
//
// A worker that asks for an item which lies before where a stream is, or far behind it, gets it as well: from the nearest
// mark, or from the start of the stream. So marks and the order of reading decide how long it takes, and nothing else.
#pragma once

#include <lockstep/stream.h>

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "torch/data/reader.h"

namespace lockstep::data {

class StreamSet : public Dataset {
 public:
  StreamSet(OpenStream open, std::int64_t samples);

  std::int64_t size() const override;
  bool is_endless() const { return samples_ == 0; }
  const OpenStream& open() const { return open_; }

  // BadInput: only a StreamReader has samples.
  Batch batch(std::span<const Sample> samples) const override;

 private:
  OpenStream open_;
  std::int64_t samples_;
};

// The StreamSet that a data set is; null for every other.
const StreamSet* streams_in(const Dataset& dataset);

// At most one loader thread: several would only wait for each other.
PrefetchOptions in_order(const PrefetchOptions& prefetch);

[[noreturn]] void refuse_weighted_streams();

// A stream of this pass, at this position, gives this item of the epoch next.
struct StreamMark {
  std::int64_t epoch = 0;
  std::int64_t item = 0;
  std::int64_t pass = 0;
  std::int64_t position = -1;  // -1: the stream cannot tell
  std::int64_t digest = 0;     // of the item. If it is read again, it must be the same
};

// Threads:   any; one reads at a time.
// Blocking:  as long as the streams take.
// Failure:   what the streams throw; BadInput for a stream without samples, and for one that gives another sample where a
//            mark is.
// Ownership: owns the streams that it has opened.
class StreamReader : public Dataset {
 public:
  StreamReader(const StreamSet& set, int shards, std::uint64_t seed);
  ~StreamReader() override;

  std::int64_t size() const override { return size_; }
  Batch batch(std::span<const Sample> samples) const override;

  // The last mark of a shard before an item. There is one at the first item of every batch that was read.
  std::optional<StreamMark> mark(int shard, std::int64_t epoch, std::int64_t item) const;
  // Marks of a checkpoint.
  void add_mark(int shard, const StreamMark& mark) const;

 private:
  struct Cursor;
  struct Shard {
    std::vector<Cursor> cursors;   // open streams, the last used first
    std::deque<StreamMark> marks;  // the newest last
  };
  using Example = torch::data::Example<>;

  enum class Marks : bool { kNo, kYes };
  Example read(const Sample& sample, Marks marks) const LOCKSTEP_REQUIRES(mutex_);
  Cursor& cursor_at(int shard, std::int64_t epoch, std::int64_t item) const
      LOCKSTEP_REQUIRES(mutex_);
  Cursor opened(int shard, const StreamMark& at) const;
  Example take(Cursor& cursor, int shard) const LOCKSTEP_REQUIRES(mutex_);
  Example next(Cursor& cursor, int shard) const;
  void check(int shard, const Cursor& cursor, const Example& example) const
      LOCKSTEP_REQUIRES(mutex_);
  Shard& shard_at(int shard) const LOCKSTEP_REQUIRES(mutex_);

  OpenStream open_;
  std::int64_t size_;
  int shards_;
  std::uint64_t seed_;
  mutable base::Mutex mutex_;
  mutable std::vector<Shard> streams_ LOCKSTEP_GUARDED_BY(mutex_);  // by shard
};

}  // namespace lockstep::data

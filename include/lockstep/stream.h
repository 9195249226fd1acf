// Data that can only be read forward: one stream for each shard.
//
//   auto data = lockstep::stream_dataset([](const lockstep::StreamPlace& place) {
//     return std::make_unique<Lines>("part" + std::to_string(place.shard) + ".txt");
//   }, {.samples = 1'000'000});
//   for (const lockstep::GlobalBatch& batch : job.batches(data, {.epochs = 3})) step(batch);
//
// A loader, a Job and a Trainer take it as any other data set. Sample k of shard s in an epoch is the k-th that stream
// s gives, so every bit depends on the job alone: on which streams there are, and not on who reads them.
#pragma once

#include <lockstep/dataset.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace lockstep {

// Which stream is opened.
struct StreamPlace {
  int shard = 0;
  int shards = 1;          // of the job; in the drop-in loop: shard and shards are rank and workers
  std::int64_t epoch = 0;  // from 0; evaluation reads epoch 0
  std::int64_t pass = 0;   // how often this shard's stream has ended in this epoch
  std::uint64_t seed = 0;  // depends only on the job's seed and on the above: to shuffle with
};

// The samples of one shard in one pass, in an order of its own. Two streams that are opened for the same place give the
// same samples. A Job opens some twice, to see whether they do.
//
// next() may draw from LibTorch's default generator, as Dataset::batch() may: what it draws depends on the place and on
// the number of the sample. Numbers that a stream draws when it is opened must come from the place's seed.
//
// Threads:   one caller at a time, not always the same thread.
// Blocking:  as long as reading takes.
// Failure:   BadInput for data that cannot be read.
// Ownership: samples belong to the caller.
class Stream {
 public:
  virtual ~Stream() = default;

  // The next sample; nothing at the end. The target may be undefined, in all samples or in none.
  virtual std::optional<torch::data::Example<>> next() = 0;

  // Where the stream is, as a number of 0 or more: an offset in a file, for example. Also asked before the first sample.
  // Checkpoints keep it. Nothing: the stream cannot tell. A job that goes on then opens the stream and reads all samples
  // before its position again.
  virtual std::optional<std::int64_t> position() const { return std::nullopt; }

  // Goes to a position that a stream of the same place has told: next() then gives what it would have given there. Called
  // right after the stream was opened. For streams that tell their position.
  virtual void seek(std::int64_t position);
};

// Opens a stream. Any worker may open that of any shard, from a loader thread.
using OpenStream = std::function<std::unique_ptr<Stream>(const StreamPlace& place)>;

struct StreamOptions {
  // Samples of one epoch over all shards: shard s reads samples k with k · shards + s below it. A stream that ends before
  // that begins again, with the next pass; what a longer stream has beyond it is not read in this epoch. So streams may
  // have different lengths, and workers need not agree on an end. 0: the epoch has no end; a Job then wants steps.
  std::int64_t samples = 0;
};

// A data set for loaders, Jobs, Trainers and evaluation. It cannot be shuffled and has no weights: the streams decide the
// order. One loader thread of each worker reads it.
//
// Threads:   loader threads; a stream is used by one at a time.
// Blocking:  as long as the streams take.
// Failure:   BadInput without an OpenStream, for negative samples, and for a stream that has no sample at all. Also if a
//            sample is not the same when it is read again. A job that goes on in the middle of an epoch notices that:
//            it reads the last step before the checkpoint once more, and compares the first sample of each shard.
//            So it notices a seek() that goes elsewhere and, of a stream that does not tell its position, samples that
//            were added or removed before it. It does not notice other samples elsewhere, nor another length of an
//            earlier pass if the stream tells its position; verify_data compares all samples.
// Ownership: shares the OpenStream. At most two streams of each hosted shard are open.
DatasetPtr stream_dataset(OpenStream open, const StreamOptions& options = {});

}  // namespace lockstep

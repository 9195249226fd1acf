// Codecs: gradients in fewer bytes on their way between workers.
//
//   model = lockstep::data_parallel(Net(), world, {.codec = lockstep::codec::int8()});
//
// Every shard of a step encodes g + e: its part of the average, and what it has lost in the step before (error feedback).
// The average is the sum of what decoding gives, and is encoded once more for all workers. So a job with a codec gives the
// same bits on any number of workers and with any engine. They differ from those without a codec (docs/guide/codecs.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace lockstep {

// Makes bytes of a block of elements, and elements of the bytes. Derive from it for a codec of your own
// (examples/train/own_codec.cpp).
//
// It runs on CPUs: on GPUs only the codecs below are known.
//
// Both directions are pure: the same elements give the same bytes, in every process, on every processor (GPUs have
// formats of their own). Elements that are
// not finite must come out so: an update finds an overflow by them.
//
// Threads:   any; several at once.
// Blocking:  never.
// Failure:   none; a codec must not throw.
// Ownership: shared by all models that use it.
class Codec {
 public:
  // Elements of a block: neighbours in one parameter. The last block of a parameter may be shorter.
  static constexpr std::size_t kBlock = 1024;

  virtual ~Codec() = default;

  // Names every setting that changes a bit: workers compare names, and so do checkpoints. Neither empty nor "none".
  virtual std::string name() const = 0;
  // Whether what a shard loses in one step is added in the next. On each worker, or where they share memory on each host,
  // it takes a memory of the size of the model for each shard, and one more.
  virtual bool has_error_feedback() const = 0;
  // Bytes of an encoded block: they depend on its 1 … kBlock elements by number alone. encode() writes all of them, and
  // none behind. They lie at any address, aligned for nothing.
  virtual std::size_t bytes(std::size_t elements) const = 0;
  virtual void encode(std::span<const float> block, std::byte* bytes) const = 0;
  virtual void decode(const std::byte* bytes, std::span<float> block) const = 0;
};

namespace codec {

using Ptr = std::shared_ptr<const Codec>;

enum class Feedback : bool { kNone, kError };

// Half types: 2 times fewer bytes than float32. bfloat16 has the range of float32; float16 has 3 more bits, and overflows
// from 65,520 on.
Ptr bf16();
Ptr fp16();

// A byte for each element: multiples of the largest magnitude of the block / 127. 4 times fewer bytes.
Ptr int8(Feedback feedback = Feedback::kError);

// Sends the largest elements of each block, by magnitude: this fraction of them, at least one. The others wait as error
// feedback. 0.01 sends 68 times fewer bytes. BadInput for a fraction outside of 0 … 0.5.
Ptr top_k(double fraction = 0.01);

// Sends the sign of each element, and for each block the mean of the positive and of the negative ones. 30 times fewer
// bytes.
Ptr one_bit();

// PowerSGD: a matrix (a convolution's weight counts as one, with a row for each output) travels as two factors of so many
// columns. What has too few elements to gain by it travels as it is. From step `from` on; before that nothing is encoded,
// because first gradients change fast. With 16 columns or more most of the time goes into making them orthogonal. All but
// these factors is error feedback, and the factors of one step begin the next. BadInput for a rank below 1; data_parallel()
// throws it for a model that has no matrix of which factors are less than half.
Ptr power_sgd(int rank = 1, std::int64_t from = 1000);

// By the words of the command line: none (null), bf16, fp16, int8, int8:plain (without error feedback), top-k,
// top-k:FRACTION, one-bit, power-sgd, power-sgd:RANK, power-sgd:RANK:FROM. BadInput for any other, which names all of them.
Ptr parse(const std::string& words);

}  // namespace codec

}  // namespace lockstep

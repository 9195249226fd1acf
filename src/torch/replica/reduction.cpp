#include "torch/replica/reduction.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "flat/fold.h"
#include "flat/past_caches.h"
#include "flat/tree_sum.h"

namespace lockstep::replica {
namespace {

// A strip of the sum stays in the first cache until it is stored. A whole piece would not: the
// operands go through that cache, too, and the sum took 1.35 times as long.
template <typename Body>
void for_each_strip(const plan::Stretch& piece, const Body& body) {
  for (std::size_t done = 0; done < piece.count; done += flat::kStripElements) {
    plan::Stretch strip = piece;
    strip.first = piece.first + done;
    strip.count = std::min(flat::kStripElements, piece.count - done);
    body(strip);
  }
}

// A strip is a block.
static_assert(flat::kStripElements == plan::kBlockElements);
std::size_t block_of(const plan::Layout& layout, const plan::Stretch& strip) {
  return layout.entries()[strip.entry].first_block + strip.first / plan::kBlockElements;
}

}  // namespace

Comm same_workers(Comm& comm) {
  std::vector<int> ranks(static_cast<std::size_t>(comm.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return comm.split(ranks);
}

void Reduction::wait(Met) {
  for (const Work& work : works_) work.wait();
  works_.clear();
}

void MessageReduction::launch(const plan::Bucket& bucket, const Sharded* sharded,
                              const ReduceOptions& asked) {
  ReduceOptions rule = asked;
  if (rule.algorithm == Algorithm::kAutomatic && banks_.front().memory().on_host())
    rule.algorithm = Algorithm::kTwoLevels;
  works_.push_back(sharded != nullptr ? reduce_banks(bucket, *sharded, rule)
                                      : comm_.all_reduce(banks_.front().bucket(bucket), rule));
}

// First sums this worker's own partials, for this bucket only: of the bank in use no other bucket
// need be complete yet. Each sum overwrites the first bank of its partial.
Work MessageReduction::reduce_banks(const plan::Bucket& bucket, const Sharded& sharded,
                                    const ReduceOptions& rule) {
  std::vector<Buffer> partials;
  std::size_t next = 0;
  for (const plan::Reduction& partial : sharded.partials) {
    std::vector<const void*> operands;
    for (std::size_t i = 0; i < partial.operands.size(); ++i) {
      const Buffer operand = banks_.at(sharded.held[next++]).bucket(bucket);
      operands.push_back(operand.data);
      if (i == 0) partials.push_back(operand);
    }
    const Buffer& sum = partials.back();
    flat::TreeSum(partial, flat::Fold{sum.dtype}).run(operands, sum.data, sum.count);
  }
  return comm_.reduce(std::move(partials), sharded.shards, banks_.at(0).bucket(bucket), rule);
}

const FlatGradients& bank_of(const Banks& banks, const Sharded* sharded, int hosted) {
  if (sharded == nullptr) return banks.front();
  return banks.at(sharded->held[static_cast<std::size_t>(hosted)]);
}

OnePassReduction::OnePassReduction(Comm& comm, Banks& banks, const ModelPlan& plan,
                                   HostBlockEncoding* encoding)
    : comm_(comm), banks_(banks), plan_(plan), encoding_(encoding) {}

void OnePassReduction::look() {
  if (HostCopy* const averages = banks_.front().averages()) averages->look();
}

// All buckets go together, with the same rule.
void OnePassReduction::launch(const plan::Bucket&, const Sharded* sharded,
                              const ReduceOptions& rule) {
  works_.emplace_back();
  if (source_) return;
  const double factor = encoding_ == nullptr ? rule.factor : 1;  // encode_shards() multiplies by it
  source_ = sharded != nullptr ? GradientSource::everyones(banks_, *sharded->everyones, factor)
                               : GradientSource::fronts(banks_, comm_.size(), factor);
  sharded_ = sharded;
  factor_ = rule.factor;
}

void OnePassReduction::wait(Met met) {
  works_.clear();
  const auto source = std::exchange(source_, std::nullopt);
  if (!source) return;
  if (encoding_ != nullptr) encode_shards();
  if (encoding_ != nullptr || met == Met::kNo) comm_.barrier().wait();
  if (encoding_ != nullptr || !source->is(banks_.front().memory())) write(*source);
  comm_.barrier().wait();
  if (HostCopy* const averages = banks_.front().averages()) averages->renew();
  banks_.show_averages();
}

void OnePassReduction::encode_shards() {
  const plan::BlockRange all{0, plan_.layout.blocks()};
  if (sharded_ == nullptr) {
    encoding_->take_memory(comm_, comm_.size());
    encoding_->encode(comm_.rank(), all, factor_, banks_.front().memory().data(), nullptr);
    return;
  }
  for (const auto& held : sharded_->everyones->workers[static_cast<std::size_t>(comm_.rank())].held)
    encoding_->encode(held.range.begin, all, factor_, banks_.at(held.bank).memory().data(),
                      nullptr);
}

// A piece of the fronts is read by its owner alone, so it may be overwritten.
void OnePassReduction::write(const GradientSource& source) {
  std::vector<std::byte*> copies;
  if (const HostCopy* const averages = banks_.front().averages()) {
    copies.push_back(averages->shared().data());
  } else {
    for (int worker = 0; worker < comm_.size(); ++worker)
      copies.push_back(banks_.front().memory().of(worker));
  }
  const auto mine = static_cast<std::size_t>(comm_.rank());
  const auto& first_of = plan_.pieces.first_of_worker;
  const bool past_caches = plan_.layout.bytes() >= flat::kPastCachesBytes;
  const auto store = [&](std::byte* to, const void* from, std::size_t bytes) {
    past_caches ? flat::copy_past_caches(from, to, bytes)
                : static_cast<void>(std::memcpy(to, from, bytes));
  };
  const SomePieces own{plan_, {first_of[mine], first_of[mine + 1]}};
  for_each_piece(own, source, [&](std::size_t number, GradientReader& gradients) {
    for_each_strip(plan_.pieces.all[number], [&](const plan::Stretch& strip) {
      const void* average = gradients.read(strip);
      const std::size_t offset = offset_of(plan_.layout, strip);
      const std::size_t bytes = strip.count * size_of(gradients.dtype());
      std::array<float, Codec::kBlock> encoded;
      if (encoding_ != nullptr) {
        std::memcpy(encoded.data(), average, bytes);
        encoding_->encode(encoding_->average(), block_of(plan_.layout, strip), 1, encoded.data(),
                          nullptr);
        average = encoded.data();
      }
      for (std::byte* const copy : copies) store(copy + offset, average, bytes);
    });
  });
}

}  // namespace lockstep::replica

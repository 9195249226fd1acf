#include "torch/replica/reduction.h"

#include "flat/tree_sum.h"

namespace lockstep::replica {

void Reduction::wait() {
  for (const Work& work : works_) work.wait();
  works_.clear();
}

void MessageReduction::launch(const plan::Bucket& bucket, const Sharded* sharded,
                              const ReduceOptions& rule) {
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

}  // namespace lockstep::replica

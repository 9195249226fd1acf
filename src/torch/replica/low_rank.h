// PowerSGD: gradients that are matrices travel as two thin factors (flat/low_rank.h). For a matrix, in every step:
//
//   a shard    M = g · factor + e, its part of the average and what it has lost so far
//   P          the sum over shards of M Q, in the order of the tree; then orthonormal
//   Q'         the sum over shards of Mᵀ P: the next step begins with it
//   everybody  gets A = P Q'ᵀ as the average; each shard keeps e' = M − A / S
//
// So what shards keep adds up to what the average has lost. Nothing here depends on workers: sums are over shards, and the
// rest is computed by every worker from the same bits. Parameters that are no matrices, or too small ones, are added as
// they are.
#pragma once

#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "flat/low_rank.h"
#include "torch/replica/encoding.h"
#include "torch/replica/reduction.h"

namespace lockstep::replica {

class LowRank : public Encoding {
 public:
  // An entry of the layout, seen as rows × columns.
  struct Matrix {
    std::size_t entry = 0;
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    torch::Tensor q;  // columns × rank
  };

  // BadInput if no matrix is worth its factors.
  LowRank(const DataParallelOptions& options, const flat::PowerSgd& codec,
          const std::vector<NamedTensor>& trained, const plan::Layout& layout);

  std::int64_t begins_at() const override { return codec_.from(); }
  // The factors are sums over all shards, so it takes messages everywhere.
  Reach reach(Reach) const override;
  std::unique_ptr<Reduction> reduction(Reach reach, Comm& comm, Banks& banks,
                                       const ModelPlan& plan) override;
  std::size_t busiest(const std::vector<plan::Bucket>& buckets, int shards,
                      int workers) const override;
  void complete(Comm& comm, const std::vector<plan::Bucket>& buckets) override;
  // shard3/fc1.weight is error feedback, q/fc1.weight the factor that the next step begins with, steps their number.
  std::vector<NamedTensor> state() const override;

  int rank() const { return codec_.rank(); }
  // Of a bucket, what goes as factors in this step, and the entries that do not.
  struct Split {
    std::vector<const Matrix*> matrices;
    std::vector<std::size_t> rest;
    std::int64_t first_floats = 0;   // P of all matrices, and the rest
    std::int64_t second_floats = 0;  // Q of all matrices
  };
  Split split(const plan::Bucket& bucket, bool factors) const;
  bool begun() const;  // this step sends factors
  void end_step();

  torch::Tensor lost(int shard, const Matrix& matrix) const;
  torch::Tensor view(std::byte* memory, const Matrix& matrix) const;
  int of_shards() const { return shards(); }

 protected:
  void allocate(Comm& comm, int shards) override;

 private:
  const flat::PowerSgd& codec_;
  std::vector<Matrix> matrices_;  // in the order of the layout
  torch::Tensor steps_;           // one integer
  std::optional<FlatMemory> lost_;
};

// Both sums of a bucket are under way while backward computes the next ones.
class LowRankReduction : public Reduction {
 public:
  LowRankReduction(Comm& comm, Banks& banks, LowRank& encoding);

  void launch(const plan::Bucket& bucket, const Sharded* sharded,
              const ReduceOptions& rule) override;
  void wait(Met met) override;

 private:
  // The sum over shards of some floats: a row of this worker for each shard that it hosts.
  struct Sum {
    torch::Tensor rows;
    Work work;
    bool begun = false;
  };
  // A bucket on its way. It does not move in memory.
  struct Flight {
    LowRank::Split what;
    const Sharded* sharded = nullptr;  // null: one gradient of each worker
    Sum first;                         // P of all matrices, and the rest
    Sum second;                        // Q of all matrices
  };

  std::byte* memory_of(const Flight& flight, int hosted) const;
  void begin(Sum& sum, const Sharded* sharded, Comm& comm);
  void make_p(Flight& flight, double factor);
  void make_q(Flight& flight);
  void go_on();
  void finish(Flight& flight);

  Banks& banks_;
  LowRank& encoding_;
  plan::ShardRange hosted_{};  // of the run under way
  std::deque<Flight> flights_;
  // Last, so that they go first: they end operations that use the flights. Two, because a worker may begin the second sum of
  // one bucket before or after the first of the next.
  Comm firsts_;
  Comm seconds_;
};

}  // namespace lockstep::replica

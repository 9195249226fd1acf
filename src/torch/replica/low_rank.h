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
#include "torch/replica/device_reduction.h"
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
          const std::vector<NamedTensor>& trained, const plan::Layout& layout, Device device);

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
  // Of a bucket, what goes as factors in this step, and the entries that do not. All begin at multiples of 64 bytes, wherever
  // they are: libraries may choose other kernels for other addresses.
  struct Split {
    struct Factors {
      const Matrix* matrix = nullptr;
      std::int64_t p = 0;  // where they begin
      std::int64_t q = 0;
    };
    struct Rest {
      std::size_t entry = 0;
      std::int64_t at = 0;
    };
    std::vector<Factors> matrices;
    std::vector<Rest> rest;
    std::int64_t first_floats = 0;   // P of all matrices, and the rest
    std::int64_t second_floats = 0;  // Q of all matrices
  };
  Split split(const plan::Bucket& bucket, bool factors) const;
  bool begun() const;  // this step sends factors
  void end_step();

  Device device() const { return device_; }
  torch::Tensor lost(int shard, const Matrix& matrix) const;
  torch::Tensor view(std::byte* memory, const Matrix& matrix) const;
  // An entry as a row.
  torch::Tensor view(std::byte* memory, std::size_t entry) const;
  torch::Tensor zeros(std::int64_t rows, std::int64_t columns) const;
  // The columns of a factor, which lies in one piece.
  void orthonormalise(const torch::Tensor& factor) const;
  int of_shards() const { return shards(); }

 protected:
  void allocate(Comm& comm, int shards) override;

 private:
  const flat::PowerSgd& codec_;
  Device device_;
  std::vector<Matrix> matrices_;  // in the order of the layout
  torch::Tensor steps_;           // one integer
  std::optional<FlatMemory> lost_;
};

// What becomes of a bucket: two sums, with the arithmetic around them. On a GPU all of it is queued on the current stream.
//
// Threads:   as LowRankReduction.
// Blocking:  never.
// Failure:   that of the collective.
// Ownership: borrows all that it is made of. Messages are received into it; it does not move.
class LowRankBucket {
 public:
  // `sharded` is null for one gradient of each worker.
  LowRankBucket(LowRank& encoding, const Banks& banks, const plan::Bucket& bucket,
                const Sharded* sharded, plan::ShardRange hosted);

  // P of all matrices, and the rest as it is. Leaves M in the place of each gradient.
  void make_first(double factor);
  // Once the first sum is there: Q of all matrices, if there are any.
  void make_second();
  bool has_second() const { return !what_.matrices.empty(); }
  // The sum over all shards.
  Work add_first(Comm& comm) { return add(first_, comm); }
  Work add_second(Comm& comm) { return add(second_, comm); }
  // Once both are there: the averages, in the first bank, and what the shards keep.
  void finish();

 private:
  std::byte* memory_of(int hosted) const {
    return bank_of(banks_, sharded_, hosted).memory().data();
  }
  torch::Tensor p_of(const LowRank::Split::Factors& factors, int hosted) const;
  torch::Tensor q_of(const LowRank::Split::Factors& factors, int hosted) const;
  Work add(const torch::Tensor& rows, Comm& comm) const;

  LowRank& encoding_;
  const Banks& banks_;
  LowRank::Split what_;
  const Sharded* sharded_;
  plan::ShardRange hosted_;
  // A row for each hosted shard. The sum over all comes to the first.
  torch::Tensor first_;
  torch::Tensor second_;
};

// Both sums of a bucket are under way while backward computes the next ones.
class LowRankReduction : public Reduction {
 public:
  LowRankReduction(Comm& comm, Banks& banks, LowRank& encoding);

  void launch(const plan::Bucket& bucket, const Sharded* sharded,
              const ReduceOptions& rule) override;
  void wait(Met met) override;

 private:
  struct Flight {
    LowRankBucket bucket;
    Work first;
    Work second;
    bool second_begun = false;
  };
  void go_on();

  Banks& banks_;
  LowRank& encoding_;
  std::deque<Flight> flights_;
  // Last, so that they go first: they end operations that use the flights. Two, because a worker may begin the second sum of
  // one bucket before or after the first of the next.
  Comm firsts_;
  Comm seconds_;
};

// The same on a GPU.
class LowRankDeviceReduction : public StagedDeviceReduction {
 public:
  LowRankDeviceReduction(Comm& comm, Banks& banks, LowRank& encoding)
      : StagedDeviceReduction(comm, banks, encoding.layout(), encoding.device()),
        encoding_(encoding) {}

 protected:
  std::unique_ptr<StagedBucket> stage(const plan::Bucket& bucket, const Sharded* sharded,
                                      double factor) override;
  void all_finished() override { encoding_.end_step(); }

 private:
  LowRank& encoding_;
};

// The class for the device of the model, and what makes the columns of a factor there orthonormal. (device_choice.cpp)
std::unique_ptr<Reduction> low_rank_reduction_of(Comm& comm, Banks& banks, LowRank& encoding);
void orthonormalise_on(Device device, const torch::Tensor& factor);

}  // namespace lockstep::replica

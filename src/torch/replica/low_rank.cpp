#include "torch/replica/low_rank.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "flat/fold.h"
#include "flat/tree_sum.h"
#include "plan/traffic.h"
#include "plan/tree.h"
#include "torch/replica/gradient_source.h"

namespace lockstep::replica {
namespace {

constexpr auto kFloat = torch::kFloat32;

float* floats_of(const torch::Tensor& tensor) {
  return tensor.data_ptr<float>();
}

// The largest rank for which its factors are worth it; 0 if none is.
int most_rank(std::size_t rows, std::size_t columns) {
  int rank = 0;
  while (flat::worth_factors(rows, columns, rank + 1)) ++rank;
  return rank;
}

std::string no_matrix(const flat::PowerSgd& codec, const std::vector<NamedTensor>& trained) {
  std::string best = "it has no matrix that is large enough";
  int most = 0;
  for (const auto& [name, tensor] : trained) {
    if (tensor.dim() < 2 || tensor.numel() == 0) continue;
    const std::int64_t rows = tensor.size(0);
    const int rank =
        most_rank(static_cast<std::size_t>(rows), static_cast<std::size_t>(tensor.numel() / rows));
    if (rank <= most) continue;
    most = rank;
    best = fmt::format("{}, which is {} × {}, could have rank {} at most", name, rows,
                       tensor.numel() / rows, rank);
  }
  return fmt::format("the codec {} would make no gradient of this model smaller: {}", codec.name(),
                     best);
}

}  // namespace

LowRank::LowRank(const DataParallelOptions& options, const flat::PowerSgd& codec,
                 const std::vector<NamedTensor>& trained, const plan::Layout& layout)
    : Encoding(options, layout), codec_(codec), steps_(torch::zeros({1}, torch::kInt64)) {
  for (std::size_t entry = 0; entry < layout.entries().size(); ++entry) {
    const torch::Tensor& tensor = trained[layout.entries()[entry].registered].tensor;
    if (tensor.dim() < 2 || tensor.numel() == 0) continue;
    const std::int64_t rows = tensor.size(0);
    const std::int64_t columns = tensor.numel() / rows;
    if (!flat::worth_factors(static_cast<std::size_t>(rows), static_cast<std::size_t>(columns),
                             rank()))
      continue;
    Matrix matrix{entry, rows, columns, torch::empty({columns, rank()}, kFloat)};
    flat::first_factor(floats_of(matrix.q), static_cast<std::size_t>(columns), rank());
    matrices_.push_back(std::move(matrix));
  }
  if (matrices_.empty()) throw BadInput(no_matrix(codec, trained));
}

Reach LowRank::reach(Reach) const {
  return Reach::kMessages;
}

std::unique_ptr<Reduction> LowRank::reduction(Reach, Comm& comm, Banks& banks, const ModelPlan&) {
  return std::make_unique<LowRankReduction>(comm, banks, *this);
}

void LowRank::allocate(Comm& comm, int shards) {
  lost_.emplace(comm, layout().bytes() * static_cast<std::size_t>(shards), Copies::kPerHost);
}

bool LowRank::begun() const {
  return steps_.item<std::int64_t>() >= begins_at();
}

void LowRank::end_step() {
  steps_.add_(1);
}

LowRank::Split LowRank::split(const plan::Bucket& bucket, bool factors) const {
  Split split;
  for (std::size_t entry = bucket.first_entry; entry < bucket.first_entry + bucket.entries;
       ++entry) {
    const auto matrix = std::find_if(matrices_.begin(), matrices_.end(),
                                     [&](const Matrix& one) { return one.entry == entry; });
    if (factors && matrix != matrices_.end()) {
      split.matrices.push_back(&*matrix);
      split.first_floats += matrix->rows * rank();
      split.second_floats += matrix->columns * rank();
    } else {
      split.rest.push_back(entry);
      split.first_floats += static_cast<std::int64_t>(layout().entries()[entry].count);
    }
  }
  return split;
}

// As from the step on that sends factors.
std::size_t LowRank::busiest(const std::vector<plan::Bucket>& buckets, int shards,
                             int workers) const {
  const plan::Reduction reduction = plan::plan_reduction(shards, workers);
  std::vector<plan::Traffic> sums(static_cast<std::size_t>(workers));
  for (const plan::Bucket& bucket : buckets) {
    const Split what = split(bucket, true);
    for (const std::int64_t floats : {what.first_floats, what.second_floats}) {
      const auto all =
          plan::direct_traffic(reduction, static_cast<std::size_t>(floats), sizeof(float));
      for (std::size_t i = 0; i < sums.size(); ++i) {
        sums[i].sent += all[i].sent;
        sums[i].received += all[i].received;
      }
    }
  }
  std::size_t most = 0;
  for (const plan::Traffic& sum : sums) most = std::max({most, sum.sent, sum.received});
  return most;
}

void LowRank::complete(Comm& comm, const std::vector<plan::Bucket>&) {
  if (lost_ && !lost_->shared()) share_shards(comm, *lost_, layout(), shards());
}

torch::Tensor LowRank::view(std::byte* memory, const Matrix& matrix) const {
  return torch::from_blob(memory + layout().entries()[matrix.entry].offset,
                          {matrix.rows, matrix.columns}, kFloat);
}

torch::Tensor LowRank::lost(int shard, const Matrix& matrix) const {
  return view(lost_->data() + layout().bytes() * static_cast<std::size_t>(shard), matrix);
}

std::vector<NamedTensor> LowRank::state() const {
  std::vector<NamedTensor> all = {{"steps", steps_}};
  for (const Matrix& matrix : matrices_)
    all.push_back({"q/" + layout().entries()[matrix.entry].name, matrix.q});
  for (int shard = 0; lost_ && shard < shards(); ++shard) {
    for (const Matrix& matrix : matrices_) {
      const plan::Entry& entry = layout().entries()[matrix.entry];
      all.push_back({fmt::format("shard{}/{}", shard, entry.name),
                     lost_->as_tensor(
                         kFloat, layout().bytes() * static_cast<std::size_t>(shard) + entry.offset,
                         entry.count)});
    }
  }
  return all;
}

LowRankReduction::LowRankReduction(Comm& comm, Banks& banks, LowRank& encoding)
    : banks_(banks),
      encoding_(encoding),
      firsts_(same_workers(comm)),
      seconds_(same_workers(comm)) {}

std::byte* LowRankReduction::memory_of(const Flight& flight, int hosted) const {
  const FlatGradients& bank =
      flight.sharded == nullptr ? banks_.front()
                                : banks_.at(flight.sharded->held[static_cast<std::size_t>(hosted)]);
  return bank.memory().data();
}

void LowRankReduction::launch(const plan::Bucket& bucket, const Sharded* sharded,
                              const ReduceOptions& rule) {
  torch::NoGradGuard no_grad;
  const int shards = sharded != nullptr ? sharded->shards : firsts_.size();
  if (sharded == nullptr) encoding_.take_memory(firsts_, shards);
  hosted_ = plan::hosted_shards(firsts_.rank(), firsts_.size(), shards);
  Flight& flight = flights_.emplace_back();
  flight.what = encoding_.split(bucket, encoding_.begun());
  flight.sharded = sharded;
  make_p(flight, rule.factor);
  begin(flight.first, sharded, firsts_);
  go_on();
  works_.emplace_back();  // launched() counts it; its works are those of the flights
}

// Leaves M in the place of each gradient.
void LowRankReduction::make_p(Flight& flight, double factor) {
  const std::int64_t rank = encoding_.rank();
  for (const LowRank::Matrix* matrix : flight.what.matrices)
    flat::orthonormalise(floats_of(matrix->q), static_cast<std::size_t>(matrix->columns),
                         encoding_.rank());
  flight.first.rows = torch::empty({hosted_.size(), flight.what.first_floats}, kFloat);
  for (int number = 0; number < hosted_.size(); ++number) {
    std::byte* const memory = memory_of(flight, number);
    const torch::Tensor row = flight.first.rows[number];
    std::int64_t at = 0;
    for (const LowRank::Matrix* matrix : flight.what.matrices) {
      torch::Tensor m = encoding_.view(memory, *matrix);
      m.mul_(factor).add_(encoding_.lost(hosted_.begin + number, *matrix));
      torch::Tensor p = row.narrow(0, at, matrix->rows * rank).view({matrix->rows, rank});
      torch::mm_out(p, m, matrix->q);
      at += p.numel();
    }
    for (const std::size_t entry : flight.what.rest) {
      const plan::Entry& values = encoding_.layout().entries()[entry];
      flat::scale(DType::kFloat32, factor, memory + values.offset, floats_of(row) + at,
                  values.count);
      at += static_cast<std::int64_t>(values.count);
    }
  }
}

void LowRankReduction::make_q(Flight& flight) {
  flight.second.begun = true;
  if (flight.what.matrices.empty()) return;
  const std::int64_t rank = encoding_.rank();
  flight.second.rows = torch::empty({hosted_.size(), flight.what.second_floats}, kFloat);
  std::int64_t p_at = 0;
  std::int64_t q_at = 0;
  for (const LowRank::Matrix* matrix : flight.what.matrices) {
    const torch::Tensor p =
        flight.first.rows[0].narrow(0, p_at, matrix->rows * rank).view({matrix->rows, rank});
    flat::orthonormalise(floats_of(p), static_cast<std::size_t>(matrix->rows), encoding_.rank());
    for (int number = 0; number < hosted_.size(); ++number) {
      torch::Tensor q = flight.second.rows[number]
                            .narrow(0, q_at, matrix->columns * rank)
                            .view({matrix->columns, rank});
      torch::mm_out(q, encoding_.view(memory_of(flight, number), *matrix).t(), p);
    }
    p_at += matrix->rows * rank;
    q_at += matrix->columns * rank;
  }
  begin(flight.second, flight.sharded, seconds_);
}

// The sum over all shards comes to the first row. As MessageReduction: first this worker's own partials of the tree.
void LowRankReduction::begin(Sum& sum, const Sharded* sharded, Comm& comm) {
  const auto count = static_cast<std::size_t>(sum.rows.size(1));
  const auto row = [&](int number) { return floats_of(sum.rows[number]); };
  const auto buffer = [&](int number) { return Buffer{row(number), count, DType::kFloat32}; };
  sum.begun = true;
  if (sharded == nullptr) {
    sum.work = comm.all_reduce(buffer(0));
    return;
  }
  std::vector<Buffer> partials;
  int next = 0;
  for (const plan::Reduction& partial : sharded->partials) {
    partials.push_back(buffer(next));
    std::vector<const void*> operands;
    for (std::size_t i = 0; i < partial.operands.size(); ++i) operands.push_back(row(next++));
    flat::TreeSum(partial, flat::Fold{DType::kFloat32}).run(operands, partials.back().data, count);
  }
  sum.work = comm.reduce(std::move(partials), sharded->shards, buffer(0));
}

// The second sums begin in the order of the buckets, on every worker.
void LowRankReduction::go_on() {
  for (Flight& flight : flights_) {
    if (flight.second.begun) continue;
    if (!flight.first.work.done()) return;
    flight.first.work.wait();  // one that has failed counts as done
    make_q(flight);
  }
}

void LowRankReduction::finish(Flight& flight) {
  const std::int64_t rank = encoding_.rank();
  std::byte* const average = memory_of(flight, 0);
  const double share = 1.0 / encoding_.of_shards();
  std::int64_t p_at = 0;
  std::int64_t q_at = 0;
  for (const LowRank::Matrix* matrix : flight.what.matrices) {
    const torch::Tensor p =
        flight.first.rows[0].narrow(0, p_at, matrix->rows * rank).view({matrix->rows, rank});
    torch::Tensor factor = matrix->q;
    factor.copy_(flight.second.rows[0]
                     .narrow(0, q_at, matrix->columns * rank)
                     .view({matrix->columns, rank}));
    const torch::Tensor result = torch::mm(p, factor.t());
    for (int number = 0; number < hosted_.size(); ++number) {
      torch::Tensor lost = encoding_.lost(hosted_.begin + number, *matrix);
      torch::sub_out(lost, encoding_.view(memory_of(flight, number), *matrix), result, share);
    }
    encoding_.view(average, *matrix).copy_(result);
    p_at += matrix->rows * rank;
    q_at += matrix->columns * rank;
  }
  const float* next = floats_of(flight.first.rows[0]) + p_at;
  for (const std::size_t entry : flight.what.rest) {
    const plan::Entry& values = encoding_.layout().entries()[entry];
    std::copy_n(next, values.count, reinterpret_cast<float*>(average + values.offset));
    next += values.count;
  }
}

void LowRankReduction::wait(Met) {
  torch::NoGradGuard no_grad;
  for (Flight& flight : flights_) {
    flight.first.work.wait();
    go_on();
  }
  for (Flight& flight : flights_) {
    if (!flight.what.matrices.empty()) flight.second.work.wait();
    finish(flight);
  }
  if (!flights_.empty()) encoding_.end_step();
  flights_.clear();
  works_.clear();
}

}  // namespace lockstep::replica

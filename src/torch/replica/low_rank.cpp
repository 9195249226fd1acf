#include "torch/replica/low_rank.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
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
                 const std::vector<NamedTensor>& trained, const plan::Layout& layout, Device device)
    : Encoding(options, layout),
      codec_(codec),
      device_(device),
      steps_(torch::zeros({1}, torch::kInt64)) {
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
    matrix.q = matrix.q.to(torch::Device(device));
    matrices_.push_back(std::move(matrix));
  }
  if (matrices_.empty()) throw BadInput(no_matrix(codec, trained));
}

Reach LowRank::reach(Reach) const {
  return Reach::kMessages;
}

std::unique_ptr<Reduction> LowRank::reduction(Reach, Comm& comm, Banks& banks, const ModelPlan&) {
  return low_rank_reduction_of(comm, banks, *this);
}

void LowRank::allocate(Comm& comm, int shards) {
  lost_.emplace(comm, layout().bytes() * static_cast<std::size_t>(shards), Copies::kPerHost,
                device_);
}

bool LowRank::begun() const {
  return steps_.item<std::int64_t>() >= begins_at();
}

void LowRank::end_step() {
  steps_.add_(1);
}

namespace {

// Room for so many floats behind `end`. Returns where it begins.
std::int64_t take(std::int64_t& end, std::int64_t floats) {
  constexpr std::int64_t kAlignment = 16;
  const std::int64_t begin = end;
  end += (floats + kAlignment - 1) / kAlignment * kAlignment;
  return begin;
}

}  // namespace

LowRank::Split LowRank::split(const plan::Bucket& bucket, bool factors) const {
  Split split;
  for (std::size_t entry = bucket.first_entry; entry < bucket.first_entry + bucket.entries;
       ++entry) {
    const auto matrix = std::find_if(matrices_.begin(), matrices_.end(),
                                     [&](const Matrix& one) { return one.entry == entry; });
    if (factors && matrix != matrices_.end()) {
      const std::int64_t p = take(split.first_floats, matrix->rows * rank());
      split.matrices.push_back({&*matrix, p, take(split.second_floats, matrix->columns * rank())});
    } else if (const std::size_t count = layout().entries()[entry].count; count > 0) {
      split.rest.push_back({entry, take(split.first_floats, static_cast<std::int64_t>(count))});
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
  if (lost_ && !lost_->shared() && comm.size() > 1) share_shards(comm, *lost_, layout(), shards());
}

torch::Tensor LowRank::view(std::byte* memory, std::size_t entry) const {
  const plan::Entry& of = layout().entries()[entry];
  const auto options = torch::TensorOptions().dtype(kFloat).device(torch::Device(device_));
  return torch::from_blob(memory + of.offset, {static_cast<std::int64_t>(of.count)}, options);
}

torch::Tensor LowRank::view(std::byte* memory, const Matrix& matrix) const {
  return view(memory, matrix.entry).view({matrix.rows, matrix.columns});
}

torch::Tensor LowRank::zeros(std::int64_t rows, std::int64_t columns) const {
  const auto options = torch::TensorOptions().dtype(kFloat).device(torch::Device(device_));
  return torch::zeros({rows, columns}, options);
}

void LowRank::orthonormalise(const torch::Tensor& factor) const {
  orthonormalise_on(device_, factor);
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

LowRankBucket::LowRankBucket(LowRank& encoding, const Banks& banks, const plan::Bucket& bucket,
                             const Sharded* sharded, plan::ShardRange hosted)
    : encoding_(encoding),
      banks_(banks),
      what_(encoding.split(bucket, encoding.begun())),
      sharded_(sharded),
      hosted_(hosted) {}

torch::Tensor LowRankBucket::p_of(const LowRank::Split::Factors& factors, int hosted) const {
  const std::int64_t rows = factors.matrix->rows;
  return first_[hosted].narrow(0, factors.p, rows * encoding_.rank()).view({rows, -1});
}

torch::Tensor LowRankBucket::q_of(const LowRank::Split::Factors& factors, int hosted) const {
  const std::int64_t columns = factors.matrix->columns;
  return second_[hosted].narrow(0, factors.q, columns * encoding_.rank()).view({columns, -1});
}

void LowRankBucket::make_first(double factor) {
  for (const auto& factors : what_.matrices) encoding_.orthonormalise(factors.matrix->q);
  first_ = encoding_.zeros(hosted_.size(), what_.first_floats);
  for (int number = 0; number < hosted_.size(); ++number) {
    std::byte* const memory = memory_of(number);
    for (const auto& factors : what_.matrices) {
      torch::Tensor m = encoding_.view(memory, *factors.matrix);
      m.mul_(factor).add_(encoding_.lost(hosted_.begin + number, *factors.matrix));
      torch::Tensor p = p_of(factors, number);
      torch::mm_out(p, m, factors.matrix->q);
    }
    for (const auto& [entry, at] : what_.rest) {
      const torch::Tensor values = encoding_.view(memory, entry);
      torch::Tensor to = first_[number].narrow(0, at, values.numel());
      torch::mul_out(to, values, torch::scalar_tensor(factor, kFloat));
    }
  }
}

void LowRankBucket::make_second() {
  if (!has_second()) return;
  second_ = encoding_.zeros(hosted_.size(), what_.second_floats);
  for (const auto& factors : what_.matrices) {
    const torch::Tensor p = p_of(factors, 0);
    encoding_.orthonormalise(p);
    for (int number = 0; number < hosted_.size(); ++number) {
      torch::Tensor q = q_of(factors, number);
      torch::mm_out(q, encoding_.view(memory_of(number), *factors.matrix).t(), p);
    }
  }
}

// As MessageReduction: first this worker's own partials of the tree.
Work LowRankBucket::add(const torch::Tensor& rows, Comm& comm) const {
  const auto buffer = [&](const torch::Tensor& row) {
    return Buffer{row.data_ptr(), static_cast<std::size_t>(row.numel()), DType::kFloat32,
                  encoding_.device(), device::current_stream(encoding_.device())};
  };
  if (sharded_ == nullptr) return comm.size() > 1 ? comm.all_reduce(buffer(rows[0])) : Work();
  std::vector<Buffer> partials;
  std::int64_t next = 0;
  for (const plan::Reduction& partial : sharded_->partials) {
    std::vector<torch::Tensor> values;
    for (std::size_t i = 0; i < partial.operands.size(); ++i) values.push_back(rows[next++]);
    partials.push_back(buffer(values.front()));
    for (const auto& [left, right] : partial.additions) {
      torch::Tensor sum = values[static_cast<std::size_t>(left)];
      values.push_back(sum.add_(values[static_cast<std::size_t>(right)]));
    }
  }
  if (comm.size() == 1) return {};
  return comm.reduce(std::move(partials), sharded_->shards, buffer(rows[0]));
}

// mm_out everywhere: autocast would compute mm in a half type.
void LowRankBucket::finish() {
  std::byte* const average = memory_of(0);
  const double share = 1.0 / encoding_.of_shards();
  for (const auto& factors : what_.matrices) {
    const LowRank::Matrix& matrix = *factors.matrix;
    torch::Tensor q = matrix.q;
    q.copy_(q_of(factors, 0));
    torch::Tensor result = encoding_.zeros(matrix.rows, matrix.columns);
    torch::mm_out(result, p_of(factors, 0), q.t());
    for (int number = 0; number < hosted_.size(); ++number) {
      torch::Tensor lost = encoding_.lost(hosted_.begin + number, matrix);
      torch::sub_out(lost, encoding_.view(memory_of(number), matrix), result, share);
    }
    encoding_.view(average, matrix).copy_(result);
  }
  for (const auto& [entry, at] : what_.rest) {
    torch::Tensor to = encoding_.view(average, entry);
    to.copy_(first_[0].narrow(0, at, to.numel()));
  }
}

LowRankReduction::LowRankReduction(Comm& comm, Banks& banks, LowRank& encoding)
    : banks_(banks),
      encoding_(encoding),
      firsts_(same_workers(comm)),
      seconds_(same_workers(comm)) {}

namespace {

// The shards of this worker, for which there is memory then.
plan::ShardRange prepare(LowRank& encoding, Comm& comm, const Sharded* sharded) {
  const int shards = sharded != nullptr ? sharded->shards : comm.size();
  if (sharded == nullptr) encoding.take_memory(comm, shards);
  return plan::hosted_shards(comm.rank(), comm.size(), shards);
}

}  // namespace

void LowRankReduction::launch(const plan::Bucket& bucket, const Sharded* sharded,
                              const ReduceOptions& rule) {
  torch::NoGradGuard no_grad;
  const plan::ShardRange hosted = prepare(encoding_, firsts_, sharded);
  Flight& flight =
      flights_.emplace_back(Flight{{encoding_, banks_, bucket, sharded, hosted}, {}, {}, false});
  flight.bucket.make_first(rule.factor);
  flight.first = flight.bucket.add_first(firsts_);
  go_on();
  works_.emplace_back();  // launched() counts it; its works are those of the flights
}

// The second sums begin in the order of the buckets, on every worker.
void LowRankReduction::go_on() {
  for (Flight& flight : flights_) {
    if (flight.second_begun) continue;
    if (!flight.first.done()) return;
    flight.first.wait();  // one that has failed counts as done
    flight.second_begun = true;
    flight.bucket.make_second();
    if (flight.bucket.has_second()) flight.second = flight.bucket.add_second(seconds_);
  }
}

void LowRankReduction::wait(Met) {
  torch::NoGradGuard no_grad;
  for (Flight& flight : flights_) {
    flight.first.wait();
    go_on();
  }
  for (Flight& flight : flights_) {
    flight.second.wait();
    flight.bucket.finish();
  }
  if (!flights_.empty()) encoding_.end_step();
  flights_.clear();
  works_.clear();
}

namespace {

class LowRankStages : public StagedBucket {
 public:
  LowRankStages(Comm& comm, LowRankBucket bucket, double factor)
      : comm_(comm), bucket_(std::move(bucket)), factor_(factor) {}

  Work begin() override {
    bucket_.make_first(factor_);
    return bucket_.add_first(comm_);
  }
  Work go_on() override {
    bucket_.make_second();
    return bucket_.has_second() ? bucket_.add_second(comm_) : Work();
  }
  void finish() override { bucket_.finish(); }

 private:
  Comm& comm_;
  LowRankBucket bucket_;
  double factor_;
};

}  // namespace

std::unique_ptr<StagedBucket> LowRankDeviceReduction::stage(const plan::Bucket& bucket,
                                                            const Sharded* sharded, double factor) {
  const plan::ShardRange hosted = prepare(encoding_, comm_, sharded);
  return std::make_unique<LowRankStages>(
      comm_, LowRankBucket(encoding_, banks_, bucket, sharded, hosted), factor);
}

}  // namespace lockstep::replica

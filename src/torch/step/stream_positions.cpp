#include "torch/step/stream_positions.h"

namespace lockstep::steps {
namespace {

constexpr std::int64_t kColumns = 5;
constexpr std::int64_t kNoPass = -1;

}  // namespace

StreamPositions::StreamPositions(int shards)
    : table_(torch::full({shards, kColumns}, kNoPass, torch::kInt64)) {}

void StreamPositions::read(const data::StreamReader& streams) const {
  const auto* row = table_.data_ptr<std::int64_t>();
  for (int shard = 0; shard < table_.size(0); ++shard, row += kColumns) {
    const data::StreamMark mark{row[0], row[1], row[2], row[3], row[4]};
    if (mark.pass >= 0) streams.add_mark(shard, mark);
  }
}

// Each worker fills in the rows of its shards and leaves zeros in the others: the sum has all.
void StreamPositions::note(const data::StreamReader& streams, const plan::Batches& plan,
                           std::int64_t step, plan::ShardRange hosted, Comm& comm) {
  const plan::Position at = plan.position(step);
  const std::int64_t item = at.first_entry / plan.options().shards;
  table_.zero_();
  for (int shard = hosted.begin; shard < hosted.end; ++shard) {
    const auto mark =
        streams.mark(shard, at.epoch, item).value_or(data::StreamMark{at.epoch, 0, kNoPass});
    auto* const row = table_.data_ptr<std::int64_t>() + shard * kColumns;
    row[0] = mark.epoch;
    row[1] = mark.item;
    row[2] = mark.pass;
    row[3] = mark.position;
    row[4] = mark.digest;
  }
  const auto count = static_cast<std::size_t>(table_.numel());
  comm.all_reduce({table_.data_ptr<std::int64_t>(), count, DType::kInt64}).wait();
}

}  // namespace lockstep::steps

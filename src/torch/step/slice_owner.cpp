#include "torch/step/slice_owner.h"

#include "torch/optim/impl.h"
#include "torch/replica/replicated.h"
#include "torch/replica/tensors.h"

namespace lockstep::steps {

SliceOwner::SliceOwner(const AsynchronousRound::Setting& its, const Cut& cut, int rank)
    : its_(its),
      cut_(cut),
      rank_(rank),
      weights_(cut.bytes),
      sum_(cut.bytes),
      gradient_(cut.bytes),
      seen_(cut.bytes) {
  const optim::Trained& trained = optim::inside(its_.model.inner()).trained;
  const auto& entries = trained.model->layout().entries();
  for (std::size_t entry = 0; entry < entries.size(); ++entry) {
    const torch::Tensor parameter = trained.parameter(entry).detach();
    tensor_at(weights_.data() + entries[entry].offset, parameter).copy_(parameter);
  }
  const auto before = its_.model.state_before();
  for (std::size_t state = 0; state < trained.state.count(); ++state) {
    states_.emplace_back(cut.bytes);
    for (std::size_t entry = 0; entry < entries.size(); ++entry) {
      std::byte* const place = states_.back().data() + entries[entry].offset;
      const torch::Tensor& tensor = before[state * entries.size() + entry];
      tensor_at(place, tensor).copy_(tensor);
      memory_.states.push_back(place);
    }
  }
  memory_.weights = weights_.data();
  memory_.sum = sum_.data();
  buffers_ = replica::pack(trained.model->model().buffers);
}

SliceOwner::Bytes SliceOwner::given() const {
  Bytes bytes;
  bytes.reserve(cut_.given_by(rank_));
  const Slice& mine = cut_.of(rank_);
  bytes.insert(bytes.end(), weights_.data() + mine.begin, weights_.data() + mine.end);
  if (cut_.buffers_of(rank_) > 0) bytes.insert(bytes.end(), buffers_.begin(), buffers_.end());
  return bytes;
}

std::optional<plan::Clerk::LogEntry> SliceOwner::follow() {
  if (log_.empty()) return std::nullopt;
  const plan::Clerk::LogEntry entry = log_.front();
  if (entry.kind == plan::Clerk::LogEntry::Kind::kUpdate) {
    const auto arrived = gradients_.find(entry.task);
    if (arrived == gradients_.end()) return std::nullopt;
    if (entry.update.counts) update(entry, arrived->second);
    gradients_.erase(arrived);
  }
  log_.pop_front();
  return entry;
}

void SliceOwner::update(const plan::Clerk::LogEntry& entry, const Arrived& arrived) {
  const Slice& mine = cut_.of(rank_);
  const std::byte* from = arrived.bytes.data();
  gradient_.put(mine, from);
  from += mine.bytes();
  if (cut_.compensates) {
    seen_.put(mine, from);
    from += mine.bytes();
  }
  if (entry.update.adds)
    its_.training.add(memory_, mine.pieces, gradient_.data(), entry.loss.samples,
                      entry.update.first);
  if (!entry.update.moves) return;
  its_.set_rate(its_.tasks.steps().first + its_.tasks.task(entry.task).step);
  // One piece after the other: LibTorch's threads compute gradients.
  for (std::size_t piece = mine.pieces.begin; piece < mine.pieces.end; ++piece) {
    its_.training.apply(memory_, {piece, piece + 1},
                        {.gradient = entry.update.adds ? sum_.data() : gradient_.data(),
                         .seen = cut_.compensates ? seen_.data() : nullptr,
                         .factor = entry.update.adds ? 1 / entry.update.divisor : arrived.factor,
                         .number = its_.first_update + entry.update.number,
                         .rate = entry.update.rate});
  }
  if (cut_.buffers_of(rank_) > 0)
    buffers_.assign(from, from + static_cast<std::ptrdiff_t>(cut_.buffers));
}

void SliceOwner::gather(Comm& comm) {
  std::vector<std::size_t> counts;
  for (const Slice& slice : cut_.slices) counts.push_back(slice.bytes());
  comm.all_gather({weights_.data(), cut_.bytes, DType::kUInt8}, counts).wait();
  for (const SliceMemory& state : states_)
    comm.all_gather({state.data(), cut_.bytes, DType::kUInt8}, counts).wait();
  if (!buffers_.empty())
    comm.broadcast({buffers_.data(), buffers_.size(), DType::kUInt8}, 0).wait();
}

}  // namespace lockstep::steps

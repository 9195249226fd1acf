#include "torch/step/slice_owner.h"

#include "torch/optim/impl.h"
#include "torch/replica/replicated.h"
#include "torch/replica/tensors.h"

namespace lockstep::steps {

SliceOwner::SliceOwner(const AsynchronousRound::Setting& its, const Cut& cut, int rank)
    : its_(its), cut_(cut), rank_(rank), own_(cut.bytes) {
  const optim::Trained& trained = optim::inside(its_.model.inner()).trained;
  const auto& entries = trained.model->layout().entries();
  const Slice& mine = cut.of(rank);
  // Others own the rest.
  const auto copy_mine = [&](std::size_t entry, const SliceMemory& to, const torch::Tensor& from) {
    const plan::Entry& at = entries[entry];
    if (at.offset < mine.end && at.offset + at.bytes() > mine.begin)
      tensor_at(to.data() + at.offset, from).copy_(from);
  };
  for (std::size_t entry = 0; entry < entries.size(); ++entry)
    copy_mine(entry, own_.weights, trained.parameter(entry).detach());
  const auto before = its_.model.state_before();
  for (std::size_t state = 0; state < trained.state.count(); ++state) {
    own_.states.emplace_back(cut.bytes);
    for (std::size_t entry = 0; entry < entries.size(); ++entry) {
      copy_mine(entry, own_.states.back(), before[state * entries.size() + entry]);
      memory_.states.push_back(own_.states.back().data() + entries[entry].offset);
    }
  }
  memory_.weights = own_.weights.data();
  memory_.sum = own_.sum.data();
  buffers_ = replica::pack(trained.model->model().buffers);
}

SliceOwner::Bytes SliceOwner::given() const {
  Bytes bytes;
  bytes.reserve(cut_.given_by(rank_));
  const Slice& mine = cut_.of(rank_);
  bytes.insert(bytes.end(), own_.weights.data() + mine.begin, own_.weights.data() + mine.end);
  if (cut_.buffers_of(rank_) > 0) bytes.insert(bytes.end(), buffers_.begin(), buffers_.end());
  return bytes;
}

void SliceOwner::receive(std::int64_t task, double factor, Bytes bytes) {
  if (dropped_.erase(task) == 0) gradients_.emplace(task, Arrived{factor, std::move(bytes)});
}

std::optional<plan::Clerk::LogEntry> SliceOwner::follow() {
  if (log_.empty() || !may_follow(log_.front())) return std::nullopt;
  const plan::Clerk::LogEntry entry = log_.front();
  log_.pop_front();
  if (entry.kind == plan::Clerk::LogEntry::Kind::kUpdate) update(entry);
  return entry;
}

// Nobody waits for a gradient that is dropped, but the end: then nothing is on its way.
bool SliceOwner::may_follow(const plan::Clerk::LogEntry& entry) const {
  using Kind = plan::Clerk::LogEntry::Kind;
  if (entry.kind == Kind::kEnd) return dropped_.empty();
  return entry.kind == Kind::kGive || !entry.effect.counts || gradients_.contains(entry.task);
}

void SliceOwner::update(const plan::Clerk::LogEntry& entry) {
  const auto arrived = gradients_.find(entry.task);
  if (arrived == gradients_.end()) {
    dropped_.insert(entry.task);
    return;
  }
  if (entry.effect.counts) apply(entry, arrived->second);
  gradients_.erase(arrived);
}

void SliceOwner::apply(const plan::Clerk::LogEntry& entry, const Arrived& arrived) {
  const Slice& mine = cut_.of(rank_);
  const std::byte* from = arrived.bytes.data();
  own_.gradient.put(mine, from);
  from += mine.bytes();
  if (cut_.compensates) {
    own_.seen.put(mine, from);
    from += mine.bytes();
  }
  const plan::TaskBook::Effect& effect = entry.effect;
  if (effect.adds)
    its_.training.add(memory_, mine.pieces, own_.gradient.data(), entry.loss.samples, effect.first);
  if (!effect.moves) return;
  const RoundTraining::Update update{
      .gradient = effect.adds ? own_.sum.data() : own_.gradient.data(),
      .seen = cut_.compensates ? own_.seen.data() : nullptr,
      .factor = effect.adds ? 1 / effect.divisor : arrived.factor,
      .number = its_.first_update + effect.number,
      .step = its_.tasks.steps().first + its_.tasks.task(entry.task).step,
      .rate = effect.rate};
  // One piece after the other: LibTorch's threads compute gradients.
  for (std::size_t piece = mine.pieces.begin; piece < mine.pieces.end; ++piece)
    its_.training.apply(memory_, {piece, piece + 1}, update);
  if (cut_.buffers_of(rank_) > 0)
    buffers_.assign(from, from + static_cast<std::ptrdiff_t>(cut_.buffers));
}

void SliceOwner::gather(Comm& comm) {
  std::vector<std::size_t> counts;
  for (const Slice& slice : cut_.slices) counts.push_back(slice.bytes());
  comm.all_gather({own_.weights.data(), cut_.bytes, DType::kUInt8}, counts).wait();
  for (const SliceMemory& state : own_.states)
    comm.all_gather({state.data(), cut_.bytes, DType::kUInt8}, counts).wait();
  if (!buffers_.empty())
    comm.broadcast({buffers_.data(), buffers_.size(), DType::kUInt8}, Cut::kClerk).wait();
}

}  // namespace lockstep::steps

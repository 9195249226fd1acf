#include "torch/step/commit_page.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"

namespace lockstep::steps {
namespace {

using Word = std::atomic<CommitToken>;
static_assert(sizeof(Word) == sizeof(CommitToken) && Word::is_always_lock_free);

// Parts begin in cache lines of their own.
std::size_t up(std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  return (bytes + kLine - 1) / kLine * kLine;
}

CommitToken token_of(std::int64_t step, int phase, CommitToken copy) {
  return static_cast<CommitToken>(step + 1) << 24 | static_cast<CommitToken>(phase) << 1 | copy;
}

// Marks each piece that is written.
class Marks : public optim::UpdateJournal {
 public:
  Marks(Word* first, CommitToken token) : first_(first), token_(token) {}
  // Release: a reader that sees the mark sees the values of the piece.
  void wrote(std::size_t piece) override { first_[piece].store(token_, std::memory_order_release); }

 private:
  Word* first_;
  CommitToken token_;
};

std::vector<std::size_t> sums_of(const std::vector<std::size_t>& counts) {
  std::vector<std::size_t> sums(counts.size() + 1);
  std::partial_sum(counts.begin(), counts.end(), sums.begin() + 1);
  return sums;
}

// As StepRun::intent() writes them: divisor, scale of the loss, whether the update is skipped; for each model a clip
// factor, a count of steps, its rates and trusts.
std::size_t numbers_of(const CommitPage::Shape& shape) {
  return 3 + 2 * shape.pieces.size() + shape.rates + shape.trusts;
}

}  // namespace

CommitLayout::CommitLayout(const CommitHead& head)
    : intents(up(sizeof(CommitHead))),
      marks(up(intents + head.workers * (1 + head.intent_numbers) * sizeof(std::uint64_t))) {
  std::size_t next = up(marks + head.marks * sizeof(CommitToken));
  for (std::size_t& copy : small) {
    copy = next;
    next = up(next + (head.workers + head.shards) * sizeof(std::uint64_t) + head.buffer_bytes);
  }
  end = next;
}

CommitPage::CommitPage(Comm& comm, const Shape& shape)
    : first_mark_(sums_of(shape.pieces)),
      shape_{CommitHead::kMagic,
             static_cast<std::uint64_t>(comm.size()),
             static_cast<std::uint64_t>(shape.shards),
             shape.buffer_bytes,
             numbers_of(shape),
             first_mark_.back(),
             {0}},
      layout_(shape_),
      page_(comm, layout_.end, replica::Copies::kPerHost),
      worker_(page_.shared() ? static_cast<std::size_t>(comm.rank()) : 0) {
  if (worker_ == 0) {
    std::memcpy(page_.data(), &shape_, offsetof(CommitHead, commit));
    head().commit.store(0, std::memory_order_release);
  }
  comm.barrier().wait();  // nobody reads before it is there
}

void CommitPage::begin(std::int64_t step, int phase) {
  // The copy that does not count: what was committed last stays whole until the next commit.
  const CommitToken copy = 1 - (head().commit.load(std::memory_order_acquire) & 1);
  token_ = token_of(step, phase, copy);
}

void CommitPage::put_small(const std::map<int, double>& weighted_losses,
                           std::span<const std::byte> buffers) {
  const std::size_t copy = layout_.small[token_ & 1];
  auto* const tokens = at<Word>(copy);
  auto* const losses = at<double>(copy + shape_.workers * sizeof(std::uint64_t));
  for (const auto& [shard, loss] : weighted_losses) losses[shard] = loss;
  if (worker_ == 0 && !buffers.empty()) {  // all workers have the same buffers
    LOCKSTEP_CHECK(buffers.size() == shape_.buffer_bytes, "buffers keep their sizes");
    std::memcpy(losses + shape_.shards, buffers.data(), buffers.size());
  }
  tokens[worker_].store(token_, std::memory_order_release);  // last: what it names is complete
}

void CommitPage::intend(std::span<const double> numbers) {
  LOCKSTEP_CHECK(numbers.size() <= shape_.intent_numbers, "an intent has room for its numbers");
  const std::size_t intent = layout_.intent_of(shape_, worker_);
  auto* const token = at<Word>(intent);
  // While numbers are written there is no intent. The fence keeps them behind the 0, the last store keeps them before
  // the token: numbers under a token are always its own.
  token->store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(at<double>(intent + sizeof(Word)), numbers.data(), numbers.size_bytes());
  token->store(token_, std::memory_order_release);
}

std::unique_ptr<optim::UpdateJournal> CommitPage::journal(std::size_t model) {
  return std::make_unique<Marks>(at<Word>(layout_.marks) + first_mark_[model], token_);
}

void CommitPage::commit(std::span<const std::size_t> models) {
  CommitToken before = head().commit.load(std::memory_order_acquire);
  if (before == token_) return;
  const auto* const marks = at<Word>(layout_.marks);
  for (const std::size_t model : models) {
    const bool all = std::all_of(
        marks + first_mark_[model], marks + first_mark_[model + 1],
        [&](const Word& mark) { return mark.load(std::memory_order_acquire) == token_; });
    LOCKSTEP_CHECK(all, "every piece of a model is marked when its update has ended");
  }
  // It fails if another worker was faster, with the same token.
  head().commit.compare_exchange_strong(before, token_, std::memory_order_acq_rel);
}

}  // namespace lockstep::steps

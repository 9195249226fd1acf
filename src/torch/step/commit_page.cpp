#include "torch/step/commit_page.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>

#include "base/check.h"
#include "control/faults.h"

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

// What a thread keeps of the piece that it writes. The values follow.
struct KeptHead {
  Word token;  // 0 while the rest is written
  std::uint64_t mark;
  std::atomic<std::uint64_t> elements;  // that are kept of each memory
  std::uint64_t bytes;                  // of all memories
};
constexpr std::size_t kKeptHeadBytes = 64;
static_assert(sizeof(KeptHead) <= kKeptHeadBytes);

struct JournalMemory {
  std::byte* all = nullptr;  // of all workers
  std::byte* own = nullptr;
  std::size_t bytes = 0;    // of a record
  std::size_t records = 0;  // of all workers
};

// Marks each piece that is written, and keeps the old values of the part that is being written.
class Marks : public optim::UpdateJournal {
 public:
  Marks(Word* marks, std::size_t first, JournalMemory memory, CommitToken token)
      : marks_(marks), first_(first), memory_(memory), token_(token) {}

  // A process that is killed has done all its stores up to some instruction, in their order. So what is kept of an
  // element is whole before the element changes. The piece before is marked by now, and its record is free.
  Room keep(std::size_t piece, const Changing& changing) override {
    if (memory_.bytes == 0) return {};
    const auto thread = static_cast<std::size_t>(at::get_thread_num());
    std::byte* const at = memory_.own + thread * memory_.bytes;
    auto* const kept = reinterpret_cast<KeptHead*>(at);
    kept->token.store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    kept->mark = first_ + piece;
    kept->elements.store(changing.by_update == 0 ? changing.elements : 0,
                         std::memory_order_relaxed);
    std::byte* to = at + kKeptHeadBytes;
    for (std::size_t i = 0; i < changing.memories.size(); ++i) {
      const Bytes& memory = changing.memories[i];
      if (i >= changing.by_update) std::memcpy(to, memory.data(), memory.size());
      to += memory.size();
    }
    kept->bytes = static_cast<std::uint64_t>(to - at) - kKeptHeadBytes;
    kept->token.store(token_, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    const Room room{at + kKeptHeadBytes, &kept->elements};
    if (has_faults_) tear(room, changing);
    return room;
  }
  // Release: a reader that sees the mark sees the values of the piece.
  void wrote(std::size_t piece) override {
    marks_[first_ + piece].store(token_, std::memory_order_release);
    if (has_faults_) control::Faults::here().strike("update", control::Faults::here().step());
  }

  bool is_written(std::size_t piece) const override {
    return marks_[first_ + piece].load(std::memory_order_acquire) == token_;
  }
  // The furthest: another worker may have begun to finish it. What both have kept is the same.
  Kept kept(std::size_t piece) const override {
    Kept last;
    for (std::size_t record = 0; record < memory_.records && memory_.bytes > 0; ++record) {
      const std::byte* const at = memory_.all + record * memory_.bytes;
      const auto* const kept = reinterpret_cast<const KeptHead*>(at);
      if (kept->token.load(std::memory_order_acquire) != token_ || kept->mark != first_ + piece)
        continue;
      const std::size_t elements = kept->elements.load(std::memory_order_acquire);
      if (last.bytes.empty() || elements > last.elements)
        last = {elements, {at + kKeptHeadBytes, kept->bytes}};
    }
    return last;
  }

 private:
  // As if the process were killed in the middle of the piece: half of it is kept and changed.
  static void tear(const Room& room, const Changing& changing) {
    control::Faults& faults = control::Faults::here();
    if (!faults.due("torn", faults.step())) return;
    const std::size_t half = changing.elements / 2;
    std::byte* to = room.values;
    for (const Bytes& memory : changing.memories) {
      const std::size_t bytes = memory.size() / changing.elements * half;
      std::memcpy(to, memory.data(), bytes);
      std::memset(memory.data(), 0x55, bytes);
      to += memory.size();
    }
    if (changing.by_update > 0) room.elements->store(half);
    faults.strike("torn", faults.step());
  }

  Word* marks_;
  std::size_t first_;
  JournalMemory memory_;
  CommitToken token_;
  bool has_faults_ = !control::Faults::here().none();
};

std::vector<std::size_t> sums_of(const std::vector<std::size_t>& counts) {
  std::vector<std::size_t> sums(counts.size() + 1);
  std::partial_sum(counts.begin(), counts.end(), sums.begin() + 1);
  return sums;
}

// As StepRun::intent() writes them: divisor, scale of the loss, whether the update is skipped, the scaler's growth tracker;
// for each model a clip factor, a count of steps, its rates and trusts.
std::size_t numbers_of(const CommitPage::Shape& shape) {
  return 4 + 2 * shape.pieces.size() + shape.rates + shape.trusts;
}

// Larger than that of any page before on this host: milliseconds, and then random bits, for those of other hosts.
std::uint64_t drawn_id() {
  constexpr int kRandomBits = 24;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const auto time = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  std::random_device device;
  std::uniform_int_distribution<std::uint64_t> draw(1, (1 << kRandomBits) - 1);
  return static_cast<std::uint64_t>(time) << kRandomBits | draw(device);
}

// Of one record. Half parameters are kept by whole pieces.
std::size_t journal_bytes(const CommitPage::Shape& shape) {
  if (shape.memories == 0) return 0;
  return up(kKeptHeadBytes + shape.memories * plan::kPieceElements * sizeof(double));
}

}  // namespace

CommitLayout::CommitLayout(const CommitHead& head)
    : intents(up(sizeof(CommitHead))),
      marks(up(intents + 2 * head.workers * (1 + head.intent_numbers) * sizeof(std::uint64_t))) {
  std::size_t next = up(marks + head.marks * sizeof(CommitToken));
  for (std::size_t& copy : small) {
    copy = next;
    next = up(next + (head.workers + head.shards) * sizeof(std::uint64_t) + head.buffer_bytes);
  }
  journal = next;
  end = journal + head.workers * head.threads * head.journal_bytes;
}

CommitPage::CommitPage(Comm& comm, const Shape& shape)
    : first_mark_(sums_of(shape.pieces)),
      shape_{CommitHead::kMagic,
             drawn_id(),
             shape.one_each ? 1 : static_cast<std::uint64_t>(comm.size()),
             static_cast<std::uint64_t>(shape.shards),
             shape.buffer_bytes,
             numbers_of(shape),
             first_mark_.back(),
             static_cast<std::uint64_t>(at::get_num_threads()),
             journal_bytes(shape),
             {0}},
      layout_(shape_),
      page_(comm, layout_.end,
            shape.one_each ? replica::Copies::kPerWorker : replica::Copies::kPerHost),
      is_shared_(page_.shared() && !shape.one_each),
      worker_(is_shared_ ? static_cast<std::size_t>(comm.rank()) : 0) {
  if (worker_ == 0) {
    std::memcpy(page_.data(), &shape_, offsetof(CommitHead, commit));
    head().commit.store(0, std::memory_order_release);
  }
  page_.leave_behind(comm, replica::FlatMemory::Use::kCommits);
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
  const std::size_t intent = layout_.intent_of(shape_, worker_, token_);
  auto* const token = at<Word>(intent);
  // While numbers are written there is no intent. The fence keeps them behind the 0, the last store keeps them before
  // the token: numbers under a token are always its own.
  token->store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(at<double>(intent + sizeof(Word)), numbers.data(), numbers.size_bytes());
  token->store(token_, std::memory_order_release);
}

std::unique_ptr<optim::UpdateJournal> CommitPage::journal(std::size_t model) {
  std::byte* const all = at<std::byte>(layout_.journal);
  const std::size_t own = shape_.threads;
  const JournalMemory memory{all, all + worker_ * own * shape_.journal_bytes, shape_.journal_bytes,
                             shape_.workers * own};
  return std::make_unique<Marks>(at<Word>(layout_.marks), first_mark_[model], memory, token_);
}

Word* CommitPage::token_of_intent(std::size_t worker, CommitToken token) const {
  return at<Word>(layout_.intent_of(shape_, worker, token));
}

CommitPage::Fate CommitPage::fate(std::int64_t step, int phase) {
  const CommitToken committed = head().commit.load(std::memory_order_acquire);
  constexpr CommitToken kCopy = 1;
  if ((committed & ~kCopy) == token_of(step, phase, 0)) {
    token_ = committed;
    return Fate::kCommitted;
  }
  begin(step, phase);
  for (std::size_t worker = 0; worker < shape_.workers; ++worker) {
    if (token_of_intent(worker, token_)->load(std::memory_order_acquire) == token_)
      return Fate::kIntended;
  }
  return Fate::kNothing;
}

std::vector<double> CommitPage::intent_of(CommitToken token) const {
  for (std::size_t worker = 0; worker < shape_.workers; ++worker) {
    if (token_of_intent(worker, token)->load(std::memory_order_acquire) != token) continue;
    const double* const first =
        at<double>(layout_.intent_of(shape_, worker, token) + sizeof(std::uint64_t));
    return {first, first + shape_.intent_numbers};
  }
  return {};
}

std::vector<double> CommitPage::intent() {
  return intent_of(token_);
}

CommitPage::Last CommitPage::last() {
  const CommitToken committed = head().commit.load(std::memory_order_acquire);
  const double* const first =
      at<double>(layout_.small[committed & 1] + shape_.workers * sizeof(std::uint64_t));
  Last last{{first, first + shape_.shards}};
  if (const auto numbers = intent_of(committed); committed != 0 && !numbers.empty()) {
    last.total_weight = numbers[0];
    last.skipped = numbers[2] != 0;
  }
  return last;
}

std::span<const std::byte> CommitPage::last_buffers() {
  const CommitToken committed = head().commit.load(std::memory_order_acquire);
  const std::size_t before = (shape_.workers + shape_.shards) * sizeof(std::uint64_t);
  return {at<std::byte>(layout_.small[committed & 1] + before), shape_.buffer_bytes};
}

std::optional<CommitPage::Left> CommitPage::left_in(std::span<std::byte> page) {
  if (page.size() < sizeof(CommitHead)) return std::nullopt;
  const auto& head = *reinterpret_cast<const CommitHead*>(page.data());
  if (head.magic != CommitHead::kMagic) return std::nullopt;
  const CommitLayout layout(head);
  if (layout.end > page.size()) return std::nullopt;
  // Tokens of later phases are larger, whichever their copies are.
  CommitToken last = head.commit.load(std::memory_order_acquire);
  for (std::size_t worker = 0; worker < head.workers; ++worker) {
    for (const CommitToken copy : {0, 1}) {
      const std::size_t intent = layout.intent_of(head, worker, copy);
      last = std::max(last, reinterpret_cast<const Word*>(page.data() + intent)->load());
    }
  }
  if (last == 0) return std::nullopt;
  return Left{head.id, static_cast<std::int64_t>(last >> 24) - 1,
              static_cast<int>(last >> 1 & 0x7fffff)};
}

bool CommitPage::has_its_shape() {
  const std::size_t first = offsetof(CommitHead, workers);
  return head().magic == shape_.magic &&
         std::memcmp(&head().workers, &shape_.workers, offsetof(CommitHead, commit) - first) == 0;
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

std::unique_ptr<CommitPage> make_commit_page(Comm& comm, const CommitPage::Shape& shape) {
  if (comm.hosts().empty() || shape.one_each) return std::make_unique<CommitPage>(comm, shape);
  Comm host = comm.on_host();
  return std::make_unique<CommitPage>(host, shape);
}

}  // namespace lockstep::steps

// The commit page: how far the steps of a job have come. It is memory that the workers of a host share, and it outlives
// any of them. If a worker dies in a step, the others find here what they need to finish the step, or to repeat it.
//
//   small values   what a step changes besides weights and state: buffers, losses. There are two copies, and the commit
//                  word says which one counts. Written before the first weight
//   intent         of each worker: which phase of which step, and every number that decides what will be written. It is
//                  complete before this worker writes its first weight
//   marks          of each piece of each model: the phase whose values it has
//   journal        of each thread that writes: the old values of the part of a piece that it is writing
//   commit word    the last phase of which every piece of every model is marked. The first worker that finds it so
//                  moves it. Gradients are overwritten only after that
//
// So if a step has no intent, it has changed nothing that counts, and is repeated. If it has an intent, it can be
// finished from the gradients, the intent and the journal. (docs/decisions/0016-a-step-is-one-thing.md)
//
// On several hosts each host has a page. If workers do not share memory, each has a page of its own. So it is on GPUs, whose
// memory goes with its process: a worker that lives there has queued its update or not, and there is nothing to finish.
#pragma once

#include <lockstep/comm.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "torch/optim/update.h"
#include "torch/replica/flat_memory.h"

namespace lockstep::steps {

// Names a phase of a step: the step + 1 from bit 24 on, then the phase, and in bit 0 the copy of the small values that is
// its own. It is one word, so that one store can mark or commit.
using CommitToken = std::uint64_t;

// The start of the page. It says the shape of all that follows, so that another process can read the page.
struct CommitHead {
  static constexpr std::uint64_t kMagic = 0x7265636e65746e69;  // a reader searches for it
  std::uint64_t magic;
  std::uint64_t id;  // no other page has it, and later ones of the host have larger ones
  std::uint64_t workers;
  std::uint64_t shards;
  std::uint64_t buffer_bytes;
  std::uint64_t intent_numbers;  // of each worker
  std::uint64_t marks;
  std::uint64_t threads;            // of each worker
  std::uint64_t journal_bytes;      // of each thread's record
  std::atomic<CommitToken> commit;  // 0: none
};

// Offsets of the parts, from the start of the page. Writers and readers compute them from the head.
struct CommitLayout {
  explicit CommitLayout(const CommitHead& head);
  std::size_t intents;   // of each worker and copy: a token, which is written last, and its numbers
  std::size_t marks;     // a token each
  std::size_t small[2];  // of each copy: a token of each worker, losses by shard, buffers
  std::size_t journal;  // of each thread: a token, a mark's number, a count of elements, old values
  std::size_t end;

  // Two of each worker, as of the small values: the intent of the last phase that was committed stays.
  std::size_t intent_of(const CommitHead& head, std::size_t worker, CommitToken token) const {
    return intents + (2 * worker + (token & 1)) * (1 + head.intent_numbers) * sizeof(std::uint64_t);
  }
};

// One worker's access to the page of a loop.
//
// Threads:   one caller at a time; journals as UpdateJournal says.
// Blocking:  the constructor, which is collective.
// Failure:   Unavailable if there is no memory for it.
// Ownership: the Loop owns it; the page itself belongs to all workers of the host.
class CommitPage {
 public:
  struct Shape {
    int shards = 0;
    std::size_t buffer_bytes = 0;
    std::vector<std::size_t> pieces;  // of each model
    std::size_t rates = 0;            // of all optimizers together
    std::size_t trusts = 0;           // the same, of layer-wise ones
    std::size_t memories = 0;         // that an update of a piece changes, at most; 0: no journal
    bool one_each = false;            // each worker has weights of its own, and a page of its own
  };
  CommitPage(Comm& comm, const Shape& shape);

  // The calls of a phase, in this order. `numbers` is what decides this worker's update.
  void begin(std::int64_t step, int phase);
  void put_small(const std::map<int, double>& weighted_losses, std::span<const std::byte> buffers);
  void intend(std::span<const double> numbers);
  std::unique_ptr<optim::UpdateJournal> journal(std::size_t model);
  // Moves the commit word, unless another worker has. Every piece of these models must be marked.
  void commit(std::span<const std::size_t> models);

  // After a worker was lost in a phase. kIntended: somebody has begun to write; begin() has been called for the phase
  // here.
  enum class Fate { kNothing, kIntended, kCommitted };
  Fate fate(std::int64_t step, int phase);
  std::vector<double> intent();  // the numbers of somebody's intent for this phase
  // Of the last phase that was committed.
  struct Last {
    std::vector<double> losses;  // by shard, of those that were put
    double total_weight = 0;
    bool skipped = false;
  };
  Last last();
  // Of all models, packed, after that phase.
  std::span<const std::byte> last_buffers();

  // In the page that workers have left which have all ended: the last phase that was committed, or that somebody has
  // begun to write. Nothing if there is none, or if it is no such page.
  struct Left {
    std::uint64_t id = 0;
    std::int64_t step = 0;
    int phase = 0;
  };
  static std::optional<Left> left_in(std::span<std::byte> page);
  // After the memory behind it has become that of another page: whether that has the shape of this one.
  bool has_its_shape();

  // Whether a phase was committed on this page.
  bool has_commit() { return head().commit.load(std::memory_order_acquire) != 0; }

  // Workers that say the same number have the same page. From 1 to 2^62.
  std::int64_t id() { return static_cast<std::int64_t>(head().id); }
  // The keeper of this host has the page and the memory behind it, and is to be told when a phase is committed.
  void set_left(bool left) { is_left_ = left; }
  bool is_left() const { return is_left_; }
  // Whether so many workers put their losses here: then those of all shards are here.
  bool has_all_of(int workers) const {
    return is_shared_ && shape_.workers == static_cast<std::uint64_t>(workers);
  }

 private:
  std::atomic<CommitToken>* token_of_intent(std::size_t worker, CommitToken token) const;
  std::vector<double> intent_of(CommitToken token) const;
  CommitHead& head() { return *reinterpret_cast<CommitHead*>(page_.data()); }
  template <typename T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(page_.data() + offset);
  }

  std::vector<std::size_t> first_mark_;  // of each model, and the end
  CommitHead shape_;
  CommitLayout layout_;
  replica::FlatMemory page_;
  bool is_shared_;
  bool is_left_ = false;
  std::size_t worker_ = 0;  // our number on the page: the rank if the page is shared, else 0
  CommitToken token_ = 0;   // of the phase under way
};

// Of the workers that share memory: all, those of a host, or this one alone.
std::unique_ptr<CommitPage> make_commit_page(Comm& comm, const CommitPage::Shape& shape);

}  // namespace lockstep::steps

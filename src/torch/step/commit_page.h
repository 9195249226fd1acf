// How far the steps of a job have come, in memory that the workers of a host share and that outlives any of them: what
// the others need to finish, or to repeat, a step that a worker has died in.
//
//   small values   what a step changes besides weights and state: buffers, losses. They are there twice, and the commit word
//                  says which one counts. Written before the first weight is
//   intent         of each worker: which phase of which step, and every number that decides what will be written. Complete
//                  before this worker writes its first weight
//   marks          of each piece of each model: the phase whose values it has
//   commit word    the last phase of which every piece of every model is marked. The first that finds it so moves it.
//                  Gradients are overwritten only after that
//
// So a step without any intent has changed nothing that counts, and is repeated; one with an intent can be finished from
// the gradients and the intent. (docs/decisions/0016-a-step-is-one-thing.md)
//
// Where workers do not share memory each has a page of its own.
#pragma once

#include <lockstep/comm.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "torch/optim/update.h"
#include "torch/replica/flat_memory.h"

namespace lockstep::steps {

// A phase of a step; and in the lowest bit, which of the two copies of the small values is its.
using CommitToken = std::uint64_t;
CommitToken commit_token(std::int64_t step, int phase, int copy);

// At the start of the page; another process may read it.
struct CommitHead {
  static constexpr std::uint64_t kMagic = 0x7265636e65746e69;  // by which it is found from outside
  std::uint64_t magic;
  std::uint64_t workers;
  std::uint64_t shards;
  std::uint64_t buffer_bytes;
  std::uint64_t intent_numbers;  // of each worker
  std::uint64_t marks;
  std::atomic<CommitToken> commit;  // 0: none
};

// Where each part lies, in bytes from the start of the page.
struct CommitLayout {
  explicit CommitLayout(const CommitHead& head);
  std::size_t intents;   // of each worker: a token, written last, and its numbers
  std::size_t marks;     // a token each
  std::size_t small[2];  // of each copy: a token of each worker, losses by shard, buffers
  std::size_t end;

  std::size_t intent_of(const CommitHead& head, std::size_t worker) const {
    return intents + worker * (1 + head.intent_numbers) * sizeof(std::uint64_t);
  }
};

// Threads:   one caller at a time; journals as UpdateJournal says.
// Blocking:  the constructor, which is collective.
// Failure:   Unavailable when there is no memory for it.
// Ownership: of the page, with the other workers.
class CommitPage {
 public:
  struct Shape {
    int shards = 0;
    std::size_t buffer_bytes = 0;
    std::vector<std::size_t> pieces;  // of each model
    std::size_t rates = 0;            // of all optimizers together
  };
  CommitPage(Comm& comm, const Shape& shape);

  // The order of a phase. All values of a worker are there after put_small(); all that decides its update after intend().
  void begin(std::int64_t step, int phase);
  void put_small(const std::map<int, double>& weighted_losses, std::span<const std::byte> buffers);
  void intend(std::span<const double> numbers);
  std::unique_ptr<optim::UpdateJournal> journal(std::size_t model);
  // Moves the word if every piece of these models is marked, and nobody has yet.
  void commit(std::span<const std::size_t> models);

  const CommitHead& head() const { return *reinterpret_cast<const CommitHead*>(page_.data()); }

 private:
  CommitHead& head() { return *reinterpret_cast<CommitHead*>(page_.data()); }
  template <typename T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(page_.data() + offset);
  }

  std::vector<std::size_t> first_mark_;  // of each model, and the end
  CommitHead shape_;
  CommitLayout layout_;
  replica::FlatMemory page_;
  std::size_t worker_ = 0;  // on this page
  bool writes_buffers_;
  CommitToken token_ = 0;  // of the phase under way
};

// Null where the models are on a GPU, whose memory goes with its process.
std::unique_ptr<CommitPage> make_commit_page(Comm& comm, const CommitPage::Shape& shape,
                                             Device device);

}  // namespace lockstep::steps

// One NCCL communicator with the stream that its operations are queued on, and memory for them.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "comm/core/device.h"
#include "comm/nccl/nccl_api.h"
#include "comm/nccl/wait_check.h"
#include "plan/tree.h"

namespace lockstep::comm {

// Bytes that go to a peer or come from it.
struct Move {
  enum class Direction : std::uint8_t { kSend, kRecv };
  Direction direction = Direction::kSend;
  int peer = 0;
  void* data = nullptr;
  std::size_t bytes = 0;

  bool operator==(const Move&) const = default;
};

// Threads:   one that queues; any that ask for the state, abort, or register memory.
// Blocking:  form and what queues operations, until the library has taken them, as long as the check finds nothing.
//            abort and close, for seconds at most: what the library does not give back by then is left to it.
// Failure:   what the check finds, thrown. The link is not ended here.
// Ownership: its stream, its memory, its place among the workers. Memory of operations is borrowed until the stream has
//            come so far, or the communicator was aborted.
class Communicator {
 public:
  // On the current device. A world of one needs no communicator of the library, and is formed.
  Communicator(std::shared_ptr<NcclApi> api, int rank, int size);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  StreamHandle stream() const { return stream_; }

  bool formed() const;
  void form(const std::string& id, WaitCheck& check);

  // Queued on the stream, each after the one before.
  void move(std::span<const Move> moves, WaitCheck& check);
  void broadcast(const Buffer& data, int root, WaitCheck& check);
  // Of each buffer by itself, in one group.
  void all_reduce(std::span<const Buffer> data, ReduceOp op, WaitCheck& check);
  void sum(const flat::SumTask& task);
  void copy(void* to, const void* from, std::size_t bytes);
  // The same memory for all operations, of at least so many bytes.
  std::byte* scratch(std::size_t bytes);

  NcclState state();
  // Ends what is under way. From the moment it is called nothing that the stream has reached means anything.
  void abort() noexcept;
  const std::shared_ptr<std::atomic<bool>>& aborted() const { return aborted_; }

  // Leaves in peace where nothing is under way, else aborts.
  void close() noexcept;

  // Memory that is registered as long as there is a communicator.
  void add_arena(void* data, std::size_t bytes);
  void remove_arena(void* data) noexcept;
  bool has_registered(void* data) const;

 private:
  // Of all operations, one after the other.
  struct Scratch {
    void* data = nullptr;
    std::size_t bytes = 0;
  };
  struct Registered {
    std::size_t bytes = 0;
    void* registration = nullptr;
  };
  void queue(WaitCheck& check, const std::function<void(NcclHandle)>& calls);
  void await(WaitCheck& check);
  // Takes the handle away, with all registrations given back.
  NcclHandle take_handle() noexcept;
  bool drained(std::chrono::milliseconds patience) noexcept;
  bool finalized(NcclHandle handle) noexcept;
  void release_stream() noexcept;

  std::shared_ptr<NcclApi> api_;
  int rank_;
  int size_;
  StreamHandle stream_ = nullptr;
  Scratch scratch_;
  std::shared_ptr<std::atomic<bool>> aborted_;
  std::mutex abort_mutex_;
  mutable std::mutex mutex_;  // of all below
  NcclHandle handle_ = nullptr;
  bool formed_ = false;
  bool stuck_ = false;  // the library did not come back
  std::map<void*, Registered> arenas_;
};

// The collectives on devices, as moves and sums on one stream.

// Queues a task on the communicator's stream.
void queue_collective(Communicator& communicator, const DeviceTask& task, WaitCheck& check);

}  // namespace lockstep::comm

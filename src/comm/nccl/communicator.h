// One NCCL communicator with the stream that its operations are queued on, and memory for them.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
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

// Wraps one communicator of NCCL. NCCL's calls can hang if a peer is gone, so every wait for the
// library looks at a WaitCheck, and abort() may be called at any time from another thread.
//
// Threads:   one thread queues operations. Any thread may ask for the state, abort, or register
//            memory.
// Blocking:  form and the functions that queue operations block until the library has taken them,
//            as long as the check finds nothing. abort and close block for seconds at most: what
//            the library has not given back by then is left to it.
// Failure:   throws what the check finds. The link is not ended here.
// Ownership: owns its stream, its scratch memory and NCCL's handle. The memory of an operation is
//            borrowed until the stream has done it, or the communicator was aborted.
class Communicator {
 public:
  // On the current device. A world of one worker needs no communicator of the library: it counts as
  // formed.
  Communicator(std::shared_ptr<NcclApi> api, int rank, int size);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  StreamHandle stream() const { return stream_; }

  bool formed() const;
  void form(const std::string& id, WaitCheck& check);

  // These queue work on the stream; each runs after the one before.
  void move(std::span<const Move> moves, WaitCheck& check);
  void broadcast(const Buffer& data, int root, WaitCheck& check);
  // Reduces each buffer separately, all in one group.
  void all_reduce(std::span<const Buffer> data, ReduceOp op, WaitCheck& check);
  void sum(const flat::SumTask& task);
  void copy(void* to, const void* from, std::size_t bytes);
  // Memory of at least so many bytes. All operations use the same memory: they run one after the
  // other on the stream.
  std::byte* scratch(std::size_t bytes);

  NcclState state();
  // Ends all operations in flight. An event that the stream reaches after this call proves nothing
  // any more.
  void abort() noexcept;
  const std::shared_ptr<std::atomic<bool>>& aborted() const { return aborted_; }

  // Leaves in order if nothing is in flight, else aborts. No other thread aborts meanwhile, or
  // queues operations.
  void close() noexcept;

  // Memory that is registered with NCCL as long as there is a communicator.
  void add_arena(void* data, std::size_t bytes);
  void remove_arena(void* data) noexcept;
  bool has_registered(void* data) const;

 private:
  // All operations use it, one after the other.
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
  // Gives back all registrations, and takes the handle out, so that no other thread uses it.
  NcclHandle take_handle() noexcept;
  bool drained(std::chrono::milliseconds patience) noexcept;
  bool finalized(NcclHandle handle) noexcept;
  void release_stream() noexcept;

  std::shared_ptr<NcclApi> api_;
  int rank_;
  int size_;
  // No mutex for these two: only close() gives the stream back, when no other thread uses it any
  // more, and only the thread that queues, and close() after it, use the scratch memory.
  StreamHandle stream_ = nullptr;
  Scratch scratch_;
  std::shared_ptr<std::atomic<bool>> aborted_;
  base::Mutex abort_mutex_;  // one thread aborts; guards no data
  mutable base::Mutex mutex_;
  NcclHandle handle_ LOCKSTEP_GUARDED_BY(mutex_) = nullptr;
  bool formed_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool stuck_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // the library did not come back
  std::map<void*, Registered> arenas_ LOCKSTEP_GUARDED_BY(mutex_);
};

// collectives.cpp: queues a collective on the communicator's stream, as moves and sums.
void queue_collective(Communicator& communicator, const DeviceTask& task, WaitCheck& check);

}  // namespace lockstep::comm

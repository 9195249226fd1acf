// A device made of host memory and threads, and an NCCL made of queues: what the engine does without any GPU.
//
//   stream   a thread that runs what is queued on it, in order
//   group    sends and receives that a stream runs as one; queued only when state() has been asked often enough, as the
//            library queues in the background
//   abort    ends what a communicator's groups wait for, like the library's
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "comm/nccl/nccl_api.h"

namespace lockstep::testing {

// What the tests do to the device, and what they can see of it. All workers of a process share one.
struct FakeFaults {
  std::atomic<int> asks_before_done{2};   // of state() after every call
  std::atomic<bool> nobody_joins{false};  // communicators never form
  std::atomic<bool> abort_hangs{false};   // until it is false again
  std::atomic<int> frozen_rank{-1};  // calls of that rank do not return, as in a stopped process
  std::atomic<bool> no_registering{false};
  std::atomic<int> fails_of_rank{-1};  // state() of that rank's communicators fails
  std::atomic<bool> fails_by_peer{true};
};

// What has been asked of the device so far.
struct FakeCounts {
  std::atomic<int> aborts{0};
  std::atomic<int> returned_aborts{0};
  std::atomic<int> destroyed{0};
  std::atomic<int> sums{0};
  std::atomic<int> arena_released_on{-1};  // a device
};

class FakeDevice : public comm::NcclApi {
 public:
  FakeDevice();
  ~FakeDevice() override;

  FakeFaults faults;

  // What is queued on the stream from here on waits until the gate is open.
  using Gate = std::shared_ptr<std::atomic<bool>>;
  void hold(comm::StreamHandle stream, Gate open);

  // Waits for what was queued on streams that have been destroyed.
  void settle();

  // Handles and memory that nobody has given back, once what was given back on streams is.
  std::size_t left_over();
  int aborts() const { return counts_.aborts; }
  int returned_aborts() const { return counts_.returned_aborts; }
  int destroyed() const { return counts_.destroyed; }
  int sums() const { return counts_.sums; }
  // The device that the thread had chosen which gave an arena back last.
  int arena_released_on() const { return counts_.arena_released_on; }

  int devices() override { return 2; }
  int current_device() override;
  void choose_device(int device) override;
  bool is_memory_of(const void* data, int device) override;
  comm::StreamHandle make_stream() override;
  void destroy_stream(comm::StreamHandle stream) noexcept override;
  bool is_idle(comm::StreamHandle stream) override;
  comm::EventHandle make_event() override;
  void destroy_event(comm::EventHandle event) noexcept override;
  void record(comm::EventHandle event, comm::StreamHandle stream) override;
  bool has_come(comm::EventHandle event) override;
  void make_wait(comm::StreamHandle stream, comm::EventHandle event) override;
  void* take(std::size_t bytes, comm::StreamHandle stream) override;
  void release(void* data, comm::StreamHandle stream) noexcept override;
  void* take_arena(std::size_t bytes) override;
  void release_arena(void* data) noexcept override;
  void copy(void* to, const void* from, std::size_t bytes, comm::StreamHandle stream) override;
  void sum(const flat::SumTask& task, comm::StreamHandle stream) override;
  std::string make_id() override;
  comm::NcclHandle join(const std::string& id, int rank, int size) override;
  comm::NcclState state(comm::NcclHandle handle) override;
  void begin_group() override;
  void end_group(comm::NcclHandle handle) override;
  void send(comm::NcclHandle handle, int peer, const void* data, std::size_t bytes,
            comm::StreamHandle stream) override;
  void recv(comm::NcclHandle handle, int peer, void* data, std::size_t bytes,
            comm::StreamHandle stream) override;
  void broadcast(comm::NcclHandle handle, int root, void* data, std::size_t bytes,
                 comm::StreamHandle stream) override;
  void all_reduce(comm::NcclHandle handle, const Buffer& data, ReduceOp op,
                  comm::StreamHandle stream) override;
  void* register_memory(comm::NcclHandle handle, void* data, std::size_t bytes) noexcept override;
  void deregister_memory(comm::NcclHandle handle, void* registration) noexcept override;
  void finalize(comm::NcclHandle handle) override;
  void destroy(comm::NcclHandle handle) noexcept override;
  void abort(comm::NcclHandle handle) noexcept override;

 private:
  struct Stream;
  struct Event;
  struct World;
  struct Member;
  using Job = std::function<void()>;

  Stream& stream_of(comm::StreamHandle handle);
  static void push(Stream& stream, Job job);
  void add_to_group(Job job, comm::StreamHandle stream, bool sends = false);
  static std::shared_ptr<Member> member_of(comm::NcclHandle handle);
  void* allocate(std::size_t bytes);
  void free_memory(void* data);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::shared_ptr<World>> worlds_;
  std::set<std::pair<const std::byte*, std::size_t>> memory_;
  std::set<void*> handles_;
  std::unique_ptr<Stream> default_stream_;
  std::map<comm::StreamHandle, std::unique_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<Stream>> destroyed_streams_;
  std::atomic<int> ids_{0};
  FakeCounts counts_;
};

// Sums one task on the host, with the device's arithmetic.
void sum_on_host(const flat::SumTask& task);

}  // namespace lockstep::testing

#include "tests/comm/nccl/fake_device.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "flat/fold.h"
#include "flat/tree_sum_element.h"

namespace lockstep::testing {

using comm::EventHandle;
using comm::NcclHandle;
using comm::NcclState;
using comm::StreamHandle;
using flat::SumTask;

struct FakeDevice::Stream {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Job> jobs;
  bool running = false;
  bool stopping = false;
  std::thread thread;

  Stream() {
    thread = std::thread([this] {
      std::unique_lock lock(mutex);
      while (true) {
        changed.wait(lock, [&] { return stopping || !jobs.empty(); });
        if (jobs.empty()) return;
        const Job job = std::move(jobs.front());
        jobs.pop_front();
        running = true;
        lock.unlock();
        job();
        lock.lock();
        running = false;
      }
    });
  }
  ~Stream() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
      changed.notify_all();
    }
    thread.join();
  }
};

struct FakeDevice::Event {
  std::mutex mutex;
  std::condition_variable changed;
  int recorded = 0;
  int come = 0;
};

// What the members of one communicator send each other.
struct FakeDevice::World {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0;
  int joined = 0;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> lines;  // sender, receiver
};

struct FakeDevice::Member {
  std::shared_ptr<World> world;
  int rank = 0;
  std::atomic<bool> aborted{false};
  std::mutex mutex;
  int asks = 0;
  Job pending;  // a group that the library has not queued yet

  void send(int peer, const std::byte* data, std::size_t bytes) {
    const std::lock_guard lock(world->mutex);
    if (aborted) return;
    world->lines[{rank, peer}].emplace_back(data, data + bytes);
    world->changed.notify_all();
  }
  void recv(int peer, std::byte* data, std::size_t bytes) {
    std::unique_lock lock(world->mutex);
    auto& line = world->lines[{peer, rank}];
    world->changed.wait(lock, [&] { return aborted || !line.empty(); });
    if (aborted) return;
    if (line.front().size() != bytes) std::abort();  // the device would write over other memory
    std::memcpy(data, line.front().data(), bytes);
    line.pop_front();
  }
};

namespace {

thread_local int chosen_device = 0;
// The group that this thread has begun. What is sent goes first, as all of a group goes at once.
thread_local std::vector<std::function<void()>> group_sends;
thread_local std::vector<std::function<void()>> group_rest;
thread_local StreamHandle group_stream = nullptr;
thread_local int group_depth = 0;

template <typename Arguments>
struct SumOnHost {
  Arguments arguments;

  template <typename T, typename Op, int kOperands, int kWidth>
  void operator()() const {
    const std::size_t packs = arguments.count / kWidth;
    for (std::size_t i = 0; i < packs; ++i)
      flat::element::sum_pack<T, Op, kOperands, kWidth>(arguments, i);
    for (std::size_t i = packs * kWidth; i < arguments.count; ++i)
      flat::element::sum_one<T, Op, kOperands>(arguments, i);
  }
};

}  // namespace

template <std::size_t kMost>
void sum_with(const SumTask& task, int known) {
  const SumOnHost<flat::element::SumArguments<kMost>> sum{flat::element::arguments_of<kMost>(task)};
  flat::element::choose(task.fold, known, flat::element::all_aligned(task, 16), sum);
}

void sum_on_host(const SumTask& task) {
  if (task.operands.size() <= flat::element::kFewOperands) {
    sum_with<flat::element::kFewOperands>(task, flat::element::known_operands(task));
  } else {
    sum_with<flat::kMostOperands>(task, 0);
  }
}

// What a stream has queued means the member, not its handle.
std::shared_ptr<FakeDevice::Member> FakeDevice::member_of(NcclHandle handle) {
  return *static_cast<std::shared_ptr<Member>*>(handle);
}

FakeDevice::FakeDevice() : default_stream_(std::make_unique<Stream>()) {}
// What a library that hangs was left with goes here.
FakeDevice::~FakeDevice() {
  settle();
  streams_.clear();
  for (const auto& [data, bytes] : memory_) std::free(const_cast<std::byte*>(data));
}

void FakeDevice::settle() {
  std::vector<std::unique_ptr<Stream>> ended;
  const std::lock_guard lock(mutex_);
  ended.swap(destroyed_streams_);
}

std::size_t FakeDevice::left_over() {
  settle();
  const std::lock_guard lock(mutex_);
  return memory_.size() + handles_.size() + streams_.size();
}

void FakeDevice::hold(StreamHandle stream, Gate open) {
  push(stream_of(stream), [open] {
    while (!*open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
}

int FakeDevice::current_device() {
  return chosen_device;
}

void FakeDevice::choose_device(int device) {
  chosen_device = device;
}

bool FakeDevice::is_memory_of(const void* data, int device) {
  const auto* at = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  for (const auto& [begin, bytes] : memory_) {
    if (at >= begin && at < begin + bytes) return device == 0;
  }
  return false;
}

FakeDevice::Stream& FakeDevice::stream_of(StreamHandle handle) {
  return handle == nullptr ? *default_stream_ : *static_cast<Stream*>(handle);
}

void FakeDevice::push(Stream& stream, Job job) {
  const std::lock_guard lock(stream.mutex);
  stream.jobs.push_back(std::move(job));
  stream.changed.notify_all();
}

StreamHandle FakeDevice::make_stream() {
  auto stream = std::make_unique<Stream>();
  const StreamHandle handle = stream.get();
  const std::lock_guard lock(mutex_);
  streams_[handle] = std::move(stream);
  return handle;
}

// A stream that is at work goes when its work has ended.
void FakeDevice::destroy_stream(StreamHandle stream) noexcept {
  const bool idle = is_idle(stream);
  std::unique_ptr<Stream> ended;
  const std::lock_guard lock(mutex_);
  ended.swap(streams_[stream]);
  streams_.erase(stream);
  if (!idle) destroyed_streams_.push_back(std::move(ended));
}

bool FakeDevice::is_idle(StreamHandle handle) {
  Stream& stream = stream_of(handle);
  const std::lock_guard lock(stream.mutex);
  return stream.jobs.empty() && !stream.running;
}

// Shared with the streams that it is queued on, as a device's event outlives its handle.
EventHandle FakeDevice::make_event() {
  auto* event = new std::shared_ptr<Event>(std::make_shared<Event>());
  const std::lock_guard lock(mutex_);
  handles_.insert(event);
  return event;
}

void FakeDevice::destroy_event(EventHandle event) noexcept {
  {
    const std::lock_guard lock(mutex_);
    handles_.erase(event);
  }
  delete static_cast<std::shared_ptr<Event>*>(event);
}

void FakeDevice::record(EventHandle handle, StreamHandle stream) {
  const auto event = *static_cast<std::shared_ptr<Event>*>(handle);
  int number = 0;
  {
    const std::lock_guard lock(event->mutex);
    number = ++event->recorded;
  }
  push(stream_of(stream), [event, number] {
    const std::lock_guard lock(event->mutex);
    event->come = number;
    event->changed.notify_all();
  });
}

bool FakeDevice::has_come(EventHandle handle) {
  const auto& event = *static_cast<std::shared_ptr<Event>*>(handle);
  const std::lock_guard lock(event->mutex);
  return event->come == event->recorded;
}

void FakeDevice::make_wait(StreamHandle stream, EventHandle handle) {
  const auto event = *static_cast<std::shared_ptr<Event>*>(handle);
  int number = 0;
  {
    const std::lock_guard lock(event->mutex);
    number = event->recorded;
  }
  push(stream_of(stream), [event, number] {
    std::unique_lock lock(event->mutex);
    event->changed.wait(lock, [&] { return event->come >= number; });
  });
}

void* FakeDevice::allocate(std::size_t bytes) {
  void* data = std::aligned_alloc(256, (bytes + 256) / 256 * 256);
  const std::lock_guard lock(mutex_);
  memory_.insert({static_cast<std::byte*>(data), bytes});
  return data;
}

void FakeDevice::free_memory(void* data) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(memory_, [&](const auto& entry) { return entry.first == data; });
  }
  std::free(data);
}

void* FakeDevice::take(std::size_t bytes, StreamHandle /*stream*/) {
  return allocate(bytes);
}

void FakeDevice::release(void* data, StreamHandle stream) noexcept {
  push(stream_of(stream), [this, data] { free_memory(data); });
}

void* FakeDevice::take_arena(std::size_t bytes) {
  return allocate(bytes);
}

void FakeDevice::release_arena(void* data) noexcept {
  counts_.arena_released_on = chosen_device;
  free_memory(data);
}

void FakeDevice::copy(void* to, const void* from, std::size_t bytes, StreamHandle stream) {
  push(stream_of(stream), [to, from, bytes] { std::memcpy(to, from, bytes); });
}

void FakeDevice::sum(const SumTask& task, StreamHandle stream) {
  ++counts_.sums;
  push(stream_of(stream), [task] { sum_on_host(task); });
}

std::string FakeDevice::make_id() {
  std::string id = fmt::format("fake communicator {}", ids_++);
  id.resize(128);
  return id;
}

NcclHandle FakeDevice::join(const std::string& id, int rank, int size) {
  auto member = std::make_shared<Member>();
  member->rank = rank;
  member->asks = faults.asks_before_done;
  const std::lock_guard lock(mutex_);
  auto* handle = new std::shared_ptr<Member>(member);
  handles_.insert(handle);
  auto& world = worlds_[id];
  if (!world) world = std::make_shared<World>();
  member->world = world;
  const std::lock_guard world_lock(world->mutex);
  world->size = size;
  ++world->joined;
  return handle;
}

NcclState FakeDevice::state(NcclHandle handle) {
  auto& member = *member_of(handle);
  while (faults.frozen_rank == member.rank)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (faults.fails_of_rank == member.rank)
    return {NcclState::Progress::kFailed, "the network is gone", faults.fails_by_peer};
  {
    const std::lock_guard lock(member.world->mutex);
    if (faults.nobody_joins || member.world->joined < member.world->size)
      return {NcclState::Progress::kUnderWay};
  }
  Job queued;
  {
    const std::lock_guard lock(member.mutex);
    if (member.asks > 0) {
      --member.asks;
      return {NcclState::Progress::kUnderWay};
    }
    queued.swap(member.pending);
  }
  if (queued) queued();
  return {};
}

void FakeDevice::begin_group() {
  ++group_depth;
}

void FakeDevice::add_to_group(Job job, StreamHandle stream, bool sends) {
  if (group_depth != 1) std::abort();  // sends and receives outside of a group block each other
  group_stream = stream;
  (sends ? group_sends : group_rest).push_back(std::move(job));
}

void FakeDevice::end_group(NcclHandle handle) {
  --group_depth;
  auto& member = *member_of(handle);
  auto jobs = std::exchange(group_sends, {});
  for (Job& job : std::exchange(group_rest, {})) jobs.push_back(std::move(job));
  const std::lock_guard lock(member.mutex);
  if (member.pending) std::abort();  // the library was given more before it had taken this
  member.asks = faults.asks_before_done;
  member.pending = [this, jobs = std::move(jobs), stream = group_stream] {
    push(stream_of(stream), [jobs] {
      for (const Job& job : jobs) job();
    });
  };
}

void FakeDevice::send(NcclHandle handle, int peer, const void* data, std::size_t bytes,
                      StreamHandle stream) {
  const auto member = member_of(handle);
  add_to_group([=] { member->send(peer, static_cast<const std::byte*>(data), bytes); }, stream,
               true);
}

void FakeDevice::recv(NcclHandle handle, int peer, void* data, std::size_t bytes,
                      StreamHandle stream) {
  const auto member = member_of(handle);
  add_to_group([=] { member->recv(peer, static_cast<std::byte*>(data), bytes); }, stream);
}

void FakeDevice::broadcast(NcclHandle handle, int root, void* data, std::size_t bytes,
                           StreamHandle stream) {
  const auto member = member_of(handle);
  add_to_group(
      [=] {
        auto* at = static_cast<std::byte*>(data);
        if (member->rank != root) return member->recv(root, at, bytes);
        for (int peer = 0; peer < member->world->size; ++peer) {
          if (peer != root) member->send(peer, at, bytes);
        }
      },
      stream);
}

void FakeDevice::all_reduce(NcclHandle handle, const Buffer& data, ReduceOp op,
                            StreamHandle stream) {
  const auto member = member_of(handle);
  add_to_group(
      [=] {
        auto* at = static_cast<std::byte*>(data.data);
        const std::size_t bytes = data.bytes();
        const int size = member->world->size;
        for (int peer = 0; peer < size; ++peer) member->send(peer, at, bytes);
        std::vector<std::byte> row(bytes);
        for (int peer = 0; peer < size; ++peer) {
          member->recv(peer, row.data(), bytes);
          if (peer == 0) {
            std::memcpy(at, row.data(), bytes);
          } else {
            flat::combine(data.dtype, op, at, row.data(), at, data.count);
          }
        }
      },
      stream);
}

void* FakeDevice::register_memory(NcclHandle handle, void* /*data*/,
                                  std::size_t /*bytes*/) noexcept {
  return faults.no_registering ? nullptr : handle;
}

void FakeDevice::deregister_memory(NcclHandle /*handle*/, void* /*registration*/) noexcept {}

void FakeDevice::finalize(NcclHandle handle) {
  auto& member = *member_of(handle);
  const std::lock_guard lock(member.mutex);
  member.asks = faults.asks_before_done;
}

void FakeDevice::destroy(NcclHandle handle) noexcept {
  ++counts_.destroyed;
  const std::lock_guard lock(mutex_);
  handles_.erase(handle);
  delete static_cast<std::shared_ptr<Member>*>(handle);
}

void FakeDevice::abort(NcclHandle handle) noexcept {
  ++counts_.aborts;
  while (faults.abort_hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto member = member_of(handle);
  {
    const std::lock_guard lock(member->world->mutex);
    member->aborted = true;
    member->world->changed.notify_all();
  }
  Job never_queued;  // it means the member, which means it
  {
    const std::lock_guard lock(member->mutex);
    never_queued.swap(member->pending);
  }
  const std::lock_guard lock(mutex_);
  handles_.erase(handle);
  delete static_cast<std::shared_ptr<Member>*>(handle);
  ++counts_.returned_aborts;
}

}  // namespace lockstep::testing

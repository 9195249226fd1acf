#include "comm/nccl/communicator.h"

#include <future>
#include <thread>
#include <utility>

#include "base/log.h"
#include "comm/nccl/wait_check.h"

namespace lockstep::comm {
namespace {

constexpr std::chrono::milliseconds kLibraryPatience{5000};
constexpr std::chrono::milliseconds kLeavePatience{3000};

// Makes a call that may hang in the library, on a thread of its own. False if it did not return in
// time; the thread is then left behind.
bool returns_in_time(const std::shared_ptr<NcclApi>& api,
                     void (NcclApi::*call)(NcclHandle) noexcept, NcclHandle handle) noexcept {
  try {
    std::promise<void> promise;
    auto returned = promise.get_future();
    std::thread caller([api, call, handle, promise = std::move(promise)]() mutable {
      ((*api).*call)(handle);
      promise.set_value();
    });
    const bool in_time = returned.wait_for(kLibraryPatience) == std::future_status::ready;
    in_time ? caller.join() : caller.detach();
    return in_time;
  } catch (const std::exception&) {  // no thread, no memory
    ((*api).*call)(handle);
    return true;
  }
}

}  // namespace

Communicator::Communicator(std::shared_ptr<NcclApi> api, int rank, int size)
    : api_(std::move(api)),
      rank_(rank),
      size_(size),
      stream_(api_->make_stream()),
      aborted_(std::make_shared<std::atomic<bool>>(false)),
      formed_(size == 1) {}

Communicator::~Communicator() {
  close();
}

bool Communicator::formed() const {
  const base::Lock lock(mutex_);
  return formed_;
}

void Communicator::form(const std::string& id, WaitCheck& check) {
  {
    const base::Lock lock(mutex_);
    if (!*aborted_) handle_ = api_->join(id, rank_, size_);
  }
  await(check);
  const base::Lock lock(mutex_);
  formed_ = true;
  for (auto& [data, registered] : arenas_) {
    if (handle_ != nullptr)
      registered.registration = api_->register_memory(handle_, data, registered.bytes);
  }
}

NcclState Communicator::state() {
  const base::Lock lock(mutex_);
  if (handle_ != nullptr) return api_->state(handle_);
  if (size_ == 1) return {};
  return {NcclState::Progress::kFailed, "the communicator has ended", false};
}

void Communicator::await(WaitCheck& check) {
  Pause pause;
  while (true) {
    const NcclState now = state();
    if (now.done()) return;
    if (now.failed()) raise(check.explain(now));
    if (const auto failure = check.look()) raise(*failure);
    pause.sleep();
  }
}

// The library takes an operation in the background. What comes after it on the stream must not be
// queued before the library has taken it, so wait here.
void Communicator::queue(WaitCheck& check, const std::function<void(NcclHandle)>& calls) {
  {
    const base::Lock lock(mutex_);
    if (handle_ != nullptr) {
      api_->begin_group();
      calls(handle_);
      api_->end_group(handle_);
    }
  }
  await(check);
}

void Communicator::move(std::span<const Move> moves, WaitCheck& check) {
  bool any = false;
  for (const Move& move : moves) any = any || move.bytes > 0;
  if (!any) return;
  queue(check, [&](NcclHandle handle) {
    for (const Move& move : moves) {
      if (move.bytes == 0) continue;
      if (move.direction == Move::Direction::kSend) {
        api_->send(handle, move.peer, move.data, move.bytes, stream_);
      } else {
        api_->recv(handle, move.peer, move.data, move.bytes, stream_);
      }
    }
  });
}

void Communicator::broadcast(const Buffer& data, int root, WaitCheck& check) {
  queue(check, [&](NcclHandle handle) {
    api_->broadcast(handle, root, data.data, data.bytes(), stream_);
  });
}

void Communicator::all_reduce(std::span<const Buffer> data, ReduceOp op, WaitCheck& check) {
  queue(check, [&](NcclHandle handle) {
    for (const Buffer& one : data) api_->all_reduce(handle, one, op, stream_);
  });
}

void Communicator::sum(const flat::SumTask& task) {
  api_->sum(task, stream_);
}

void Communicator::copy(void* to, const void* from, std::size_t bytes) {
  if (to != from && bytes > 0) api_->copy(to, from, bytes, stream_);
}

std::byte* Communicator::scratch(std::size_t bytes) {
  if (bytes > scratch_.bytes) {
    const Scratch before = std::exchange(scratch_, {});
    if (before.data != nullptr) api_->release(before.data, stream_);
    scratch_ = {api_->take(bytes, stream_), bytes};
  }
  return static_cast<std::byte*>(scratch_.data);
}

NcclHandle Communicator::take_handle() noexcept {
  const base::Lock lock(mutex_);
  for (auto& [data, registered] : arenas_) {
    if (handle_ != nullptr && registered.registration != nullptr && !*aborted_)
      api_->deregister_memory(handle_, registered.registration);
    registered.registration = nullptr;
  }
  formed_ = size_ == 1;
  return std::exchange(handle_, nullptr);
}

// Two threads may call it. The second one waits until the first has done everything.
void Communicator::abort() noexcept {
  const base::Lock aborting(abort_mutex_);
  if (aborted_->exchange(true)) return;
  const NcclHandle handle = take_handle();
  if (handle != nullptr && !returns_in_time(api_, &NcclApi::abort, handle)) {
    base::log(base::LogLevel::kError,
              "NCCL did not end a communicator in {} s; it is left as it is",
              kLibraryPatience.count() / 1000);
    const base::Lock lock(mutex_);
    stuck_ = true;
  }
  drained(kLeavePatience);
}

bool Communicator::drained(std::chrono::milliseconds patience) noexcept {
  const auto deadline = Deadline::after(patience);
  Pause pause;
  try {
    while (stream_ != nullptr && !api_->is_idle(stream_)) {
      if (deadline.expired()) return false;
      pause.sleep();
    }
  } catch (const Error&) {  // the device itself is lost: nothing runs there any more
  }
  return true;
}

bool Communicator::finalized(NcclHandle handle) noexcept {
  const auto deadline = Deadline::after(kLeavePatience);
  Pause pause;
  try {
    api_->finalize(handle);
    while (true) {
      const NcclState now = api_->state(handle);
      if (now.done()) return true;
      if (now.failed() || deadline.expired()) return false;
      pause.sleep();
    }
  } catch (const Error&) {
    return false;
  }
}

void Communicator::close() noexcept {
  if (stream_ == nullptr) return;
  // The last event of a stream may come a moment before the stream is idle, so wait for that.
  const bool at_rest = !*aborted_ && drained(kLeavePatience);
  if (!at_rest) abort();
  const NcclHandle handle = take_handle();
  if (handle != nullptr) {
    const auto end = finalized(handle) ? &NcclApi::destroy : &NcclApi::abort;
    if (!returns_in_time(api_, end, handle)) {
      const base::Lock lock(mutex_);
      stuck_ = true;
    }
  }
  release_stream();
}

// What the device may still use is not given back: it leaks.
void Communicator::release_stream() noexcept {
  const base::Lock lock(mutex_);
  if (!stuck_) {
    if (scratch_.data != nullptr) api_->release(scratch_.data, stream_);
    api_->destroy_stream(stream_);
  }
  scratch_ = {};
  stream_ = nullptr;
}

void Communicator::add_arena(void* data, std::size_t bytes) {
  const base::Lock lock(mutex_);
  Registered& registered = arenas_[data];
  registered.bytes = bytes;
  if (handle_ != nullptr && formed_)
    registered.registration = api_->register_memory(handle_, data, bytes);
}

void Communicator::remove_arena(void* data) noexcept {
  const base::Lock lock(mutex_);
  const auto found = arenas_.find(data);
  if (found == arenas_.end()) return;
  if (handle_ != nullptr && found->second.registration != nullptr)
    api_->deregister_memory(handle_, found->second.registration);
  arenas_.erase(found);
}

bool Communicator::has_registered(void* data) const {
  const base::Lock lock(mutex_);
  const auto found = arenas_.find(data);
  return found != arenas_.end() && found->second.registration != nullptr;
}

}  // namespace lockstep::comm

// The calls of NCCL and CUDA that the engine needs, and no others. Behind this interface are the
// libraries (cuda_api.cpp), or in the tests a device made of host memory and threads.
#pragma once

#include <lockstep/buffer.h>
#include <lockstep/comm.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "flat/tree_program.h"

namespace lockstep::comm {

// Handles of the libraries. A stream may be the default one, null.
using NcclHandle = void*;
using StreamHandle = void*;
using EventHandle = void*;

// How far a communicator is with the last call.
struct NcclState {
  enum class Progress : std::uint8_t { kDone, kUnderWay, kFailed };
  Progress progress = Progress::kDone;
  std::string trouble = {};    // in the library's words
  bool peers_trouble = false;  // the trouble is with another worker or the network

  bool done() const { return progress == Progress::kDone; }
  bool failed() const { return progress == Progress::kFailed; }
};

// Threads:   any. Calls of a thread work on the device that this thread has chosen last. Calls on
//            one communicator come one at a time.
// Blocking:  only abort, destroy and release_arena block; they may take as long as the device does.
// Failure:   Unavailable with the name of the call. Calls on communicators do not throw; ask
//            state().
// Ownership: the caller that makes a handle gives it back.
class NcclApi {
 public:
  virtual ~NcclApi() = default;

  virtual int devices() = 0;
  virtual int current_device() = 0;
  virtual void choose_device(int device) = 0;
  // Whether the memory belongs to that device, or is managed memory.
  virtual bool is_memory_of(const void* data, int device) = 0;

  virtual StreamHandle make_stream() = 0;
  virtual void destroy_stream(StreamHandle stream) noexcept = 0;
  virtual bool is_idle(StreamHandle stream) = 0;
  virtual EventHandle make_event() = 0;
  virtual void destroy_event(EventHandle event) noexcept = 0;
  virtual void record(EventHandle event, StreamHandle stream) = 0;
  virtual bool has_come(EventHandle event) = 0;
  virtual void make_wait(StreamHandle stream, EventHandle event) = 0;

  // take, release: memory in the order of a stream. take_arena, release_arena: memory that lives
  // long and can be registered.
  virtual void* take(std::size_t bytes, StreamHandle stream) = 0;
  virtual void release(void* data, StreamHandle stream) noexcept = 0;
  virtual void* take_arena(std::size_t bytes) = 0;
  virtual void release_arena(void* data) noexcept = 0;

  virtual void copy(void* to, const void* from, std::size_t bytes, StreamHandle stream) = 0;
  virtual void sum(const flat::SumTask& task, StreamHandle stream) = 0;

  // A new id for a communicator. One worker makes it; all workers of the communicator join with it.
  virtual std::string make_id() = 0;
  // Begins to join. state() says when all have joined.
  virtual NcclHandle join(const std::string& id, int rank, int size) = 0;
  virtual NcclState state(NcclHandle handle) = 0;
  // The calls between these two become one operation. It is queued when state() is done.
  virtual void begin_group() = 0;
  virtual void end_group(NcclHandle handle) = 0;
  virtual void send(NcclHandle handle, int peer, const void* data, std::size_t bytes,
                    StreamHandle stream) = 0;
  virtual void recv(NcclHandle handle, int peer, void* data, std::size_t bytes,
                    StreamHandle stream) = 0;
  virtual void broadcast(NcclHandle handle, int root, void* data, std::size_t bytes,
                         StreamHandle stream) = 0;
  virtual void all_reduce(NcclHandle handle, const Buffer& data, ReduceOp op,
                          StreamHandle stream) = 0;
  // Null if the memory cannot be registered.
  virtual void* register_memory(NcclHandle handle, void* data, std::size_t bytes) noexcept = 0;
  virtual void deregister_memory(NcclHandle handle, void* registration) noexcept = 0;

  // finalize begins to leave in order; when it is done, call destroy. abort ends everything in
  // flight, at any time.
  virtual void finalize(NcclHandle handle) = 0;
  virtual void destroy(NcclHandle handle) noexcept = 0;
  virtual void abort(NcclHandle handle) noexcept = 0;
};

// Chooses a device on this thread while it lives. The thread belongs to the caller, so the caller's
// device is chosen again at the end.
class ChosenDevice {
 public:
  ChosenDevice(NcclApi& api, int device) : api_(api), before_(api.current_device()) {
    if (device != before_) api_.choose_device(device);
    chosen_ = device;
  }
  ~ChosenDevice() {
    try {
      if (chosen_ != before_) api_.choose_device(before_);
    } catch (const std::exception&) {  // it was chosen before, so it is there
    }
  }
  ChosenDevice(const ChosenDevice&) = delete;
  ChosenDevice& operator=(const ChosenDevice&) = delete;

 private:
  NcclApi& api_;
  int before_;
  int chosen_ = 0;
};

// Owns one event.
class OwnEvent {
 public:
  explicit OwnEvent(std::shared_ptr<NcclApi> api)
      : api_(std::move(api)), event_(api_->make_event()) {}
  ~OwnEvent() { api_->destroy_event(event_); }
  OwnEvent(const OwnEvent&) = delete;
  OwnEvent& operator=(const OwnEvent&) = delete;

  EventHandle get() const { return event_; }
  NcclApi& api() const { return *api_; }

 private:
  std::shared_ptr<NcclApi> api_;
  EventHandle event_;
};

}  // namespace lockstep::comm

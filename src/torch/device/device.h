// LibTorch's side of a GPU: its streams, points on them, and graphs of what is queued. (cuda.cpp)
//
// If LibTorch or this build has no CUDA, everything that would use a GPU is Unavailable. (none.cpp)
#pragma once

#include <lockstep/buffer.h>
#include <lockstep/deadline.h>
#include <torch/torch.h>

#include <cstddef>
#include <functional>
#include <memory>

namespace lockstep::device {

// The device of a tensor, as collectives name it.
Device of(const torch::Tensor& tensor);

// Whether models may be there: on the CPU or on CUDA.
bool known(const torch::Device& device);

// Memory of a GPU, all zero, at least one byte; undefined on the CPU. Unavailable if the GPU has too little left.
torch::Tensor memory(Device device, std::size_t bytes);

// LibTorch's current stream of a device, on this thread; null on the CPU.
void* current_stream(Device device);

// Whether that stream is being captured as a graph; false on the CPU.
bool is_captured(Device device);

// As long as it lives, the device is the current one of this thread. For the CPU it does nothing.
class CurrentDevice {
 public:
  explicit CurrentDevice(Device device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A point on a stream of the current device.
//
// Threads:   one caller at a time.
// Blocking:  wait(), until the stream has come there, by its deadline.
// Failure:   Unavailable when the device fails; Timeout from wait().
// Ownership: owns the event.
class Event {
 public:
  Event();
  ~Event();
  Event(Event&&) noexcept;
  Event& operator=(Event&&) noexcept;

  void record(void* stream);
  // On a stream that is being captured: every replay of the graph records it, and streams outside can wait for it.
  void record_in_graph(void* stream);
  // What is queued on the stream from here on waits for this point.
  void precede(void* stream) const;
  void wait(Deadline deadline) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// As long as it lives, the device is the current one of this thread, and LibTorch queues on another stream: the default
// stream cannot be captured. That stream begins after what was queued before. What is queued after the scope waits for it.
//
// Threads:   the one that made it.
// Blocking:  never.
// Failure:   Unavailable when the device fails.
// Ownership: the stream is LibTorch's.
class StreamScope {
 public:
  explicit StreamScope(Device device);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Null on the CPU, which has no streams.
std::unique_ptr<StreamScope> make_stream_scope(Device device);

// LibTorch's current stream, shared with other threads. They take turns; their work runs in the order of their turns.
//
// Threads:   made by one, used by others.
// Blocking:  never.
// Failure:   Unavailable before LibTorch 2.
// Ownership: the stream is LibTorch's.
class SharedStream {
 public:
  explicit SharedStream(Device device);  // of this thread; nothing on the CPU
  ~SharedStream();
  SharedStream(const SharedStream&) = delete;
  SharedStream& operator=(const SharedStream&) = delete;

  // As long as it lives, this thread queues on the stream. A backward pass that begins here runs here, and so it may
  // wait. Else LibTorch has one thread that runs all passes of a GPU.
  class Scope {
   public:
    explicit Scope(const SharedStream& shared);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A second stream, for work that should not wait for all that is queued on the first.
//
// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   Unavailable when the device fails.
// Ownership: the stream is LibTorch's.
class SideStream {
 public:
  explicit SideStream(Device device);
  ~SideStream();
  SideStream(SideStream&&) noexcept;

  // When a scope ends: whether the first stream waits for all that was queued on the second.
  enum class After : bool { kWaits, kGoesOn };

  // As long as it lives, LibTorch queues on the second stream, on this thread. It waits for nothing when it begins.
  class Scope {
   public:
    explicit Scope(SideStream& side, After after = After::kWaits);
    ~Scope();  // NOLINT(performance-trivially-destructible): only where there are no GPUs
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    SideStream& side_;
    After after_;
  };

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A CUDA graph: what a function queues on LibTorch's current stream, captured once and then queued again as a whole. Each
// replay draws random numbers again, from the seed that LibTorch's generator has then.
//
// Threads:   one caller at a time.
// Blocking:  capture(), as long as the function takes.
// Failure:   Unavailable, with one line of LibTorch's or CUDA's words, for what cannot be captured or replayed. capture()
//            also throws what the function throws. The stream can be used afterwards.
// Ownership: memory that the function has taken belongs to the graph. Its tensors stay valid as long as the graph lives.
class Graph {
 public:
  Graph();
  ~Graph();

  void capture(const std::function<void()>& body);
  void replay();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::device

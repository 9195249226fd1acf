// LibTorch's side of a GPU: its streams, points on them, and graphs of what is queued.
//
// Where LibTorch or this build has no CUDA, built() is false and everything else is Unavailable.
#pragma once

#include <lockstep/buffer.h>
#include <lockstep/deadline.h>
#include <torch/torch.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace lockstep::device {

bool built() noexcept;

// Where a tensor lies, as collectives name it.
Device of(const torch::Tensor& tensor);

// Whether models may lie there: on the CPU or on CUDA.
bool known(const torch::Device& device);

// So many bytes of a GPU, at least one, all zero; undefined on the CPU. Unavailable if the GPU has too little left.
torch::Tensor memory(Device device, std::size_t bytes);

// LibTorch's current stream of a device, on this thread; null on the CPU.
void* current_stream(Device device);

// As long as it lives the device is the current one of this thread; on the CPU it does nothing.
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
  // On a stream that is being captured: recorded whenever the graph is replayed, for streams outside of it.
  void record_in_graph(void* stream);
  // What is queued on the stream from here on waits for it.
  void precede(void* stream) const;
  void wait(Deadline deadline) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// As long as it lives the device is the current one, and LibTorch queues on a stream of its own, on this thread, since the
// default one cannot be captured. It begins after what was queued before, and what is queued after it waits for it.
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

// On a GPU; null on the CPU, which has no streams.
std::unique_ptr<StreamScope> make_stream_scope(Device device);

// A second stream, for what should not wait for all that is queued on the first.
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

  // What the stream from before does when the scope ends: waits for all that was queued there, or not.
  enum class After : bool { kWaits, kGoesOn };

  // As long as it lives LibTorch queues there, on this thread. Nothing is waited for at its beginning.
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

// What a function queues on LibTorch's current stream, to be queued again and again. Random numbers are drawn again by each
// replay, from the seed that LibTorch's generator has then.
//
// Threads:   one caller at a time.
// Blocking:  capture(), as long as the function takes.
// Failure:   Unavailable, with LibTorch's or CUDA's words in one line, for what cannot be captured or replayed; capture()
//            also throws what else the function threw. The stream is usable after.
// Ownership: the memory that the function has taken belongs to it; tensors of it stay valid as long as it lives.
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

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/AutogradState.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <torch/version.h>

#include <chrono>
#include <string>
#include <thread>

#include "flat/cuda/handles.h"
#include "torch/device/device.h"

namespace lockstep::device {
namespace {

cudaStream_t native(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

auto index_of(Device device) {
  return static_cast<c10::DeviceIndex>(device.index);
}

}  // namespace

void* current_stream(Device device) {
  if (device.kind == DeviceKind::kCpu) return nullptr;
  return c10::cuda::getCurrentCUDAStream(index_of(device)).stream();
}

bool is_captured(Device device) {
  if (device.kind == DeviceKind::kCpu) return false;
  cudaStreamCaptureStatus status{cudaStreamCaptureStatusNone};
  cuda::check(cudaStreamIsCapturing(native(current_stream(device)), &status),
              "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

struct CurrentDevice::State {
  c10::cuda::CUDAGuard guard;
};
CurrentDevice::CurrentDevice(Device device) {
  if (device.kind != DeviceKind::kCpu)
    state_.reset(new State{c10::cuda::CUDAGuard(index_of(device))});
}
CurrentDevice::~CurrentDevice() = default;

struct Event::State {
  cuda::Event event = cuda::make_event();
};
Event::Event() : state_(std::make_unique<State>()) {}
Event::~Event() = default;
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;

void Event::record(void* stream) {
  cuda::check(cudaEventRecord(state_->event.get(), native(stream)), "cudaEventRecord");
}

void Event::record_in_graph(void* stream) {
  cuda::check(
      cudaEventRecordWithFlags(state_->event.get(), native(stream), cudaEventRecordExternal),
      "cudaEventRecordWithFlags");
}

void Event::precede(void* stream) const {
  cuda::check(cudaStreamWaitEvent(native(stream), state_->event.get(), 0), "cudaStreamWaitEvent");
}

// Stays awake for a short while, since most events come soon. Then it looks now and then, and leaves the core to others.
// CUDA has no wait with a deadline.
void Event::wait(Deadline deadline) const {
  constexpr std::chrono::microseconds kAwake{200};
  constexpr std::chrono::microseconds kNap{50};
  const Deadline awake = Deadline::after(kAwake);
  while (true) {
    const cudaError_t now = cudaEventQuery(state_->event.get());
    if (now == cudaSuccess) return;
    if (now != cudaErrorNotReady) cuda::check(now, "cudaEventQuery");
    static_cast<void>(cudaGetLastError());
    if (deadline.expired()) throw Timeout("the GPU has not finished a step by its deadline");
    if (awake.expired()) {
      std::this_thread::sleep_for(kNap);
    } else {
      std::this_thread::yield();
    }
  }
}

// Makes another stream LibTorch's current one on this thread, and goes back.
class Switch {
 public:
  Switch(Device device, bool urgent)
      : before_(c10::cuda::getCurrentCUDAStream(index_of(device))),
        own_(c10::cuda::getStreamFromPool(urgent, index_of(device))) {}

  void follow() {
    point_.record(before_.stream());
    point_.precede(own_.stream());
  }
  void enter() {
    before_ = c10::cuda::getCurrentCUDAStream(own_.device_index());
    c10::cuda::setCurrentCUDAStream(own_);
  }
  // It does not throw, because destructors call it: a device that has failed tells the next caller.
  void leave(bool waits) noexcept {
    try {
      c10::cuda::setCurrentCUDAStream(before_);
      if (!waits) return;
      point_.record(own_.stream());
      point_.precede(before_.stream());
    } catch (const std::exception&) {
    }
  }

 private:
  c10::cuda::CUDAStream before_;
  c10::cuda::CUDAStream own_;
  Event point_;
};

struct StreamScope::State {
  CurrentDevice device;
  Switch streams;
};
// An urgent stream: its kernels go before those of other streams, such as reductions, if both are ready.
StreamScope::StreamScope(Device device)
    : state_(new State{CurrentDevice(device), Switch(device, true)}) {
  state_->streams.follow();
  state_->streams.enter();
}
StreamScope::~StreamScope() {
  state_->streams.leave(true);
}

struct SharedStream::State {
  c10::cuda::CUDAStream stream;
};
SharedStream::SharedStream(Device device) {
  if (device.kind == DeviceKind::kCpu) return;
#if TORCH_VERSION_MAJOR < 2
  throw Unavailable("threads share a stream of a GPU with LibTorch 2 and later only");
#endif
  state_.reset(new State{c10::cuda::getCurrentCUDAStream(index_of(device))});
}
SharedStream::~SharedStream() = default;

struct SharedStream::Scope::State {
  c10::cuda::CUDAStreamGuard stream;
  bool threads_before = true;
};
SharedStream::Scope::Scope(const SharedStream& shared) {
  if (!shared.state_) return;
  state_.reset(new State{c10::cuda::CUDAStreamGuard(shared.state_->stream)});
#if TORCH_VERSION_MAJOR >= 2
  auto& autograd = c10::AutogradState::get_tls_state();
  state_->threads_before = autograd.get_multithreading_enabled();
  autograd.set_multithreading_enabled(false);
#endif
}
SharedStream::Scope::~Scope() {
#if TORCH_VERSION_MAJOR >= 2
  if (!state_) return;
  c10::AutogradState::get_tls_state().set_multithreading_enabled(state_->threads_before);
#endif
}

struct SideStream::State {
  Switch streams;
};
SideStream::SideStream(Device device) : state_(new State{Switch(device, false)}) {}
SideStream::~SideStream() = default;
SideStream::SideStream(SideStream&&) noexcept = default;
SideStream::Scope::Scope(SideStream& side, After after) : side_(side), after_(after) {
  side_.state_->streams.enter();
}
SideStream::Scope::~Scope() {
  side_.state_->streams.leave(after_ == After::kWaits);
}

struct Graph::State {
  at::cuda::CUDAGraph graph;
};
Graph::Graph() : state_(std::make_unique<State>()) {}
Graph::~Graph() = default;

namespace {

// LibTorch's errors have a page of stack; the first line is enough.
[[noreturn]] void raise_in_one_line(const std::exception& error) {
  const std::string text = error.what();
  throw Unavailable(text.substr(0, text.find('\n')));
}

// If a capture fails, LibTorch leaves its allocator and its generator as they are during one. This sets them back.
template <typename Pool>
void forget_capture(c10::DeviceIndex index, const Pool& pool) {
  namespace allocator = c10::cuda::CUDACachingAllocator;
  static_cast<void>(cudaGetLastError());
  const at::Generator fresh = at::cuda::detail::createCUDAGenerator(index);
  at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(index);
  generator.graphsafe_set_state(fresh.graphsafe_get_state());
  try {
    allocator::endAllocateToPool(index, pool);
  } catch (const std::exception&) {  // it had done that already
  }
  try {
    allocator::releasePool(index, pool);
  } catch (const std::exception&) {
  }
}

}  // namespace

// Thread-local mode: other threads may use CUDA meanwhile. The engine's watchdog asks for events, and loader threads take
// pinned memory.
void Graph::capture(const std::function<void()>& body) {
  const c10::DeviceIndex index = c10::cuda::current_device();
  const auto pool = at::cuda::graph_pool_handle();
  std::exception_ptr failure;
  try {
    state_->graph.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    body();
  } catch (...) {
    failure = std::current_exception();
  }
  try {
    state_->graph.capture_end();
  } catch (const std::exception&) {
    if (!failure) failure = std::current_exception();
    forget_capture(index, pool);
  }
  if (!failure) return;
  try {
    std::rethrow_exception(failure);
  } catch (const c10::Error& error) {
    raise_in_one_line(error);
  }
}

void Graph::replay() {
  try {
    state_->graph.replay();
  } catch (const c10::Error& error) {
    raise_in_one_line(error);
  }
}

}  // namespace lockstep::device

// What every device must do, as bodies for one worker: run by threads on a device made of threads, and by processes on a GPU.
#pragma once

#include <fmt/format.h>
#include <lockstep/comm.h>
#include <lockstep/errors.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/nccl/nccl_api.h"
#include "tests/support/elements.h"

namespace lockstep::testing {

// A worker may be a process of its own: what it finds wrong leaves it as an Error.
inline void require(bool holds, const std::string& what) {
  if (!holds) throw Unavailable("CHECK FAILED: " + what);
}

inline const Device kFirstGpu{DeviceKind::kCuda, 0};

// A stream of its own.
class TestStream {
 public:
  explicit TestStream(comm::NcclApi& api) : api_(api), stream_(api.make_stream()) {}
  ~TestStream() { api_.destroy_stream(stream_); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;

  comm::StreamHandle get() const { return stream_; }
  void drain() const {
    const auto deadline = Deadline::after(std::chrono::seconds(60));
    while (!api_.is_idle(stream_)) {
      require(!deadline.expired(), "a stream comes to its end");
      std::this_thread::sleep_for(std::chrono::microseconds(20));  // a device wakes nobody
    }
  }

 private:
  comm::NcclApi& api_;
  comm::StreamHandle stream_;
};

// Elements on the device.
template <typename T>
class OnDevice {
 public:
  OnDevice(comm::NcclApi& api, const TestStream& stream, std::vector<T> elements,
           std::size_t skip = 0)
      : api_(api),
        stream_(stream),
        count_(elements.size()),
        skip_(skip),
        data_(static_cast<T*>(api.take_arena((elements.size() + skip + 1) * sizeof(T)))) {
    write(elements);
  }
  ~OnDevice() { api_.release_arena(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  Buffer buffer() const { return {data_ + skip_, count_, dtype_of<T>(), kFirstGpu, stream_.get()}; }
  void write(const std::vector<T>& elements) {
    if (count_ > 0) api_.copy(data_ + skip_, elements.data(), count_ * sizeof(T), stream_.get());
    stream_.drain();
  }
  std::vector<T> read() const {
    std::vector<T> elements(count_);
    if (count_ > 0) api_.copy(elements.data(), data_ + skip_, count_ * sizeof(T), stream_.get());
    stream_.drain();
    return elements;
  }

 private:
  comm::NcclApi& api_;
  const TestStream& stream_;
  std::size_t count_;
  std::size_t skip_;  // elements, so that memory begins anywhere
  T* data_;
};

struct DeviceCase {
  std::string name;
  std::vector<int> sizes;  // of the worlds that it runs in
  std::function<void(Comm&, comm::NcclApi&)> body;
};

std::vector<DeviceCase> device_cases();

}  // namespace lockstep::testing

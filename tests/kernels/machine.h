// Where the tasks of an optimizer run in a test: on a device; or on the host, with the same text and its compiler.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "flat/device_update.h"

namespace lockstep::testing {

class Machine {
 public:
  virtual ~Machine() = default;

  // Zeros, at a multiple of 256 bytes, until the machine ends.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;

  // Each is done when it returns.
  virtual void update(const flat::UpdateTask& task) = 0;
  virtual void measure(const flat::MeasureTask& task) = 0;
  virtual void weights(const flat::WeightsTask& task) = 0;
  virtual void changes(const flat::ChangesTask& task) = 0;
  virtual void clip(const flat::ClipTask& task) = 0;
  virtual void entry_norms(const flat::EntryNormsTask& task) = 0;
  virtual void trusts(const flat::TrustTask& task) = 0;
  virtual void gather(const flat::GatherTask& task) = 0;

  template <typename T>
  T* put(const std::vector<T>& values) {
    auto* const there = reinterpret_cast<T*>(allocate(values.size() * sizeof(T)));
    if (!values.empty()) copy(there, values.data(), values.size() * sizeof(T));
    return there;
  }
  template <typename T>
  std::vector<T> get(const T* there, std::size_t count) {
    std::vector<T> values(count);
    if (count > 0) copy(values.data(), there, count * sizeof(T));
    return values;
  }
};

std::unique_ptr<Machine> make_host_machine();

}  // namespace lockstep::testing

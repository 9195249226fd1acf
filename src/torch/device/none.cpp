// device.h for builds without CUDA. Nothing can be made, so members of what cannot be made are empty.
#include <lockstep/errors.h>

#include "torch/device/device.h"

namespace lockstep::device {
namespace {

[[noreturn]] void unavailable() {
  throw Unavailable(
      "this build computes on CPUs only: build Lockstep with CUDA and with a LibTorch that has it");
}

}  // namespace

void* current_stream(Device device) {
  if (device.kind == DeviceKind::kCpu) return nullptr;
  unavailable();
}

bool is_captured(Device) {
  return false;
}

struct CurrentDevice::State {};
CurrentDevice::CurrentDevice(Device device) {
  if (device.kind != DeviceKind::kCpu) unavailable();
}
CurrentDevice::~CurrentDevice() = default;

struct Event::State {};
Event::Event() {
  unavailable();
}
Event::~Event() = default;
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;
void Event::record(void*) {}
void Event::record_in_graph(void*) {}
void Event::precede(void*) const {}
void Event::wait(Deadline) const {}

struct StreamScope::State {};
StreamScope::StreamScope(Device) {
  unavailable();
}
StreamScope::~StreamScope() = default;

struct SharedStream::State {};
SharedStream::SharedStream(Device device) {
  if (device.kind != DeviceKind::kCpu) unavailable();
}
SharedStream::~SharedStream() = default;
struct SharedStream::Scope::State {};
SharedStream::Scope::Scope(const SharedStream&) {}
SharedStream::Scope::~Scope() = default;

struct SideStream::State {};
SideStream::SideStream(Device) {
  unavailable();
}
SideStream::~SideStream() = default;
SideStream::SideStream(SideStream&&) noexcept = default;
SideStream::Scope::Scope(SideStream& side, After after) : side_(side), after_(after) {}
SideStream::Scope::~Scope() = default;

struct Graph::State {};
Graph::Graph() {
  unavailable();
}
Graph::~Graph() = default;
void Graph::capture(const std::function<void()>&) {}
void Graph::replay() {}

}  // namespace lockstep::device

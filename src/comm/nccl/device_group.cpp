#include "comm/nccl/device_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/check.h"
#include "comm/core/exchange.h"
#include "comm/nccl/communicator.h"

namespace lockstep::comm {
namespace {

// An event on the stream of every buffer of a task.
class Point : public DevicePoint {
 public:
  Point(const std::shared_ptr<NcclApi>& api, const DeviceTask& task) {
    std::set<StreamHandle> streams;
    for (const Buffer& part : task.result.parts()) streams.insert(part.stream);
    for (const Spread& partial : task.partials) {
      for (const Buffer& part : partial.parts()) streams.insert(part.stream);
    }
    for (const StreamHandle stream : streams) {
      events_.push_back(std::make_unique<OwnEvent>(api));
      api->record(events_.back()->get(), stream);
    }
  }

  void precede(NcclApi& api, StreamHandle stream) const {
    for (const auto& event : events_) api.make_wait(stream, event->get());
  }

 private:
  std::vector<std::unique_ptr<OwnEvent>> events_;
};

class NcclArena : public DeviceArena {
 public:
  NcclArena(std::shared_ptr<NcclApi> api, std::shared_ptr<Communicator> communicator, Device device,
            std::size_t bytes)
      : api_(std::move(api)),
        communicator_(std::move(communicator)),
        device_(device),
        bytes_(bytes),
        data_(api_->take_arena(bytes)) {
    communicator_->add_arena(data_, bytes_);
  }
  ~NcclArena() override {
    communicator_->remove_arena(data_);
    try {  // operations on this device may still use it, and the caller may have chosen another
      const ChosenDevice chosen(*api_, device_.index);
      api_->release_arena(data_);
    } catch (const Error&) {  // the device is lost, and everything that was queued there
      api_->release_arena(data_);
    }
  }

  std::byte* data() const override { return static_cast<std::byte*>(data_); }
  std::size_t size() const override { return bytes_; }
  Device device() const override { return device_; }
  bool registered() const override { return communicator_->has_registered(data_); }

 private:
  std::shared_ptr<NcclApi> api_;
  std::shared_ptr<Communicator> communicator_;
  Device device_;
  std::size_t bytes_;
  void* data_;
};

}  // namespace

NcclGroup::NcclGroup(Link& link, DeviceWatchdog& watch, std::shared_ptr<NcclApi> api,
                     std::vector<int> members, std::chrono::milliseconds timeout)
    : link_(link),
      watch_(watch),
      api_(std::move(api)),
      members_(std::move(members)),
      timeout_(timeout) {}

NcclGroup::~NcclGroup() {
  if (!communicator_) return;
  watch_.forget(*communicator_);
  link_.failure() ? communicator_->abort() : void();
  communicator_->close();
}

void NcclGroup::choose(int device) {
  if (device_ == device) return;
  const int devices = api_->devices();
  if (device < 0 || device >= devices) {
    throw BadInput(fmt::format("there is no cuda:{} here: this host has {} GPUs", device, devices));
  }
  if (device_ >= 0) {
    throw BadInput(fmt::format(
        "a buffer lies on cuda:{}, and those before it on cuda:{}: a worker uses one GPU", device,
        device_));
  }
  device_ = device;
}

void NcclGroup::require_usable(const Buffer& data) {
  const int before = device_;
  choose(data.device.index);
  if (data.count > 0 && !api_->is_memory_of(data.data, device_)) {
    device_ = before;
    throw BadInput(fmt::format("a buffer is said to lie on {} and does not", data.device.text()));
  }
}

// Made when the program calls a collective, before anything is queued. So the thread of the queue
// finds it and never makes it.
Communicator& NcclGroup::communicator() {
  if (!communicator_) {
    const auto self = std::find(members_.begin(), members_.end(), link_.rank());
    LOCKSTEP_CHECK(self != members_.end(), "a worker runs operations of its own groups only");
    communicator_ = std::make_shared<Communicator>(api_, static_cast<int>(self - members_.begin()),
                                                   static_cast<int>(members_.size()));
  }
  return *communicator_;
}

std::shared_ptr<DevicePoint> NcclGroup::mark(const DeviceTask& task) {
  const ChosenDevice chosen(*api_, device_);
  communicator();
  return std::make_shared<Point>(api_, task);
}

// The id of the communicator travels over the host's link, where the workers have proven the secret
// to each other. So no stranger learns it.
void NcclGroup::form(Exchange& exchange, WaitCheck& check) {
  std::string id;
  std::vector<Exchange::Ticket> tickets;
  constexpr std::size_t kIdBytes = 128;
  if (exchange.rank() == 0) {
    id = api_->make_id();
    LOCKSTEP_CHECK(id.size() == kIdBytes, "a name of NCCL's size");
    for (const int peer : exchange.peers())
      tickets.push_back(exchange.send(peer, id.data(), id.size()));
  } else {
    id.resize(kIdBytes);
    tickets.push_back(exchange.recv(0, id.data(), id.size()));
  }
  exchange.wait_all(tickets);
  communicator_->form(id, check);
}

std::shared_ptr<DeviceWork> NcclGroup::start(Exchange& exchange, const DeviceTask& task,
                                             const DevicePoint& after) {
  const ChosenDevice chosen(*api_, device_);
  const std::string doing = exchange.doing();
  const auto check = std::make_shared<WaitCheck>(link_, members_, doing);
  check->begin(exchange.deadline());
  try {
    if (!communicator_->formed()) form(exchange, *check);
    auto end = std::make_unique<OwnEvent>(api_);
    static_cast<const Point&>(after).precede(*api_, communicator_->stream());
    queue_collective(*communicator_, task, *check);
    api_->record(end->get(), communicator_->stream());
    auto flight = std::make_shared<Flight>(*communicator_, std::move(end), doing, watch_.bell());
    watch_.add(flight, communicator_, check, timeout_);
    return flight;
  } catch (const Error& error) {
    // Tells the others first: ending the work on the device takes time.
    link_.fail(failure_from(error));
    communicator_->abort();
    throw;
  } catch (const std::exception& error) {
    link_.fail(failure_of(link_.rank(), error));
    communicator_->abort();
    throw;
  }
}

std::shared_ptr<DeviceArena> NcclGroup::make_arena(Device device, std::size_t bytes) {
  choose(device.index);
  const ChosenDevice chosen(*api_, device_);
  communicator();
  return std::make_shared<NcclArena>(api_, communicator_, device, bytes);
}

bool NcclGroup::idle() {
  return !communicator_ || watch_.idle(*communicator_);
}

}  // namespace lockstep::comm

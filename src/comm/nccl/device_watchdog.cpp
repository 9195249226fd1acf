#include "comm/nccl/device_watchdog.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include "comm/nccl/wait_check.h"

namespace lockstep::comm {

Flight::Flight(const Communicator& communicator, std::unique_ptr<OwnEvent> end, std::string doing,
               std::shared_ptr<Bell> bell)
    : end_(std::move(end)),
      aborted_(communicator.aborted()),
      doing_(std::move(doing)),
      bell_(std::move(bell)) {}

// The event of an aborted operation comes, too. It counts only if it came before the abort, so
// `aborted_` is read after the event.
bool Flight::has_ended() {
  const base::Lock lock(mutex_);
  if (ended_ || failure_) return ended_;
  try {
    ended_ = end_->api().has_come(end_->get()) && !aborted_->load();
  } catch (const Error& error) {  // the device is lost
    if (!given_up_) given_up_ = failure_from(error);
  }
  return ended_;
}

bool Flight::done() {
  if (has_ended()) return true;
  const base::Lock lock(mutex_);
  return failure_.has_value();
}

std::optional<Failure> Flight::given_up() {
  const base::Lock lock(mutex_);
  return given_up_;
}

void Flight::fail(const Failure& failure) {
  const base::Lock lock(mutex_);
  if (!ended_ && !failure_) failure_ = failure;
}

void Flight::wait_until(std::optional<Deadline> deadline) {
  Pause pause;
  while (!has_ended()) {
    bool gives_up = false;
    {
      const base::Lock lock(mutex_);
      if (failure_) raise(*failure_);
      gives_up = deadline && deadline->expired() && !given_up_;
      if (gives_up) {
        given_up_ = Failure{ErrorKind::kTimeout,
                            {},
                            fmt::format("a caller gave up waiting for {} at its deadline", doing_)};
      }
    }
    if (gives_up) bell_->ring();
    pause.sleep();
  }
}

void Flight::wait_on(void* stream) {
  {
    const base::Lock lock(mutex_);
    if (failure_) raise(*failure_);
  }
  end_->api().make_wait(stream, end_->get());
}

DeviceWatchdog::~DeviceWatchdog() {
  {
    const base::Lock lock(mutex_);
    stopping_ = true;
  }
  bell_->ring();
  if (thread_.joinable()) thread_.join();
}

void DeviceWatchdog::begin() {
  if (thread_.joinable()) return;
  try {
    thread_ = std::thread([this] { loop(); });
  } catch (const std::system_error&) {
    throw Unavailable("this host allows no more threads; raise `ulimit -u`");
  }
}

void DeviceWatchdog::add(std::shared_ptr<Flight> flight, std::shared_ptr<Communicator> communicator,
                         std::shared_ptr<WaitCheck> check, std::chrono::milliseconds timeout) {
  auto entry = std::make_shared<Entry>();
  *entry = {std::move(flight), std::move(communicator), std::move(check), timeout, false};
  bool sleeps = false;  // else the thread looks again by itself within kInterval
  {
    const base::Lock lock(mutex_);
    begin();  // first: if the thread cannot start, nobody would ever drop the entry
    sleeps = entries_.empty();
    entries_.push_back(std::move(entry));
  }
  if (sleeps) bell_->ring();
}

bool DeviceWatchdog::idle(const Communicator& communicator) {
  const base::Lock lock(mutex_);
  return std::none_of(entries_.begin(), entries_.end(), [&](const auto& entry) {
    return entry->communicator.get() == &communicator && !entry->flight->done();
  });
}

void DeviceWatchdog::forget(const Communicator& communicator) {
  Pause pause;
  while (!idle(communicator)) {
    bell_->ring();
    pause.sleep();
  }
  const base::Lock lock(mutex_);
  std::erase_if(entries_,
                [&](const auto& entry) { return entry->communicator.get() == &communicator; });
}

// Operations of one communicator end in order. Behind one that has not ended, none has.
void DeviceWatchdog::drop_ended() {
  const base::Lock lock(mutex_);
  std::set<const Communicator*> busy;
  std::erase_if(entries_, [&](const auto& entry) {
    if (busy.contains(entry->communicator.get())) return false;
    if (entry->flight->done()) return true;
    busy.insert(entry->communicator.get());
    return false;
  });
}

// Works on a copy, without the lock, because a check may listen to other workers for up to a
// second.
std::optional<Failure> DeviceWatchdog::look() {
  std::vector<std::shared_ptr<Entry>> entries;
  {
    const base::Lock lock(mutex_);
    entries.assign(entries_.begin(), entries_.end());
  }
  std::set<const Communicator*> seen;
  for (const auto& entry : entries) {
    if (auto failure = entry->flight->given_up(); failure && !entry->flight->done()) return failure;
    if (seen.contains(entry->communicator.get()) || entry->flight->done()) continue;
    seen.insert(entry->communicator.get());
    if (!std::exchange(entry->first, true)) entry->check->begin(Deadline::after(entry->timeout));
    auto failure = entry->check->look();
    if (!failure) {
      const NcclState state = entry->communicator->state();
      if (state.failed() && !entry->flight->done()) failure = entry->check->explain(state);
    }
    // The operation may have ended well while the check listened to the others.
    if (failure && !entry->flight->has_ended()) return failure;
  }
  return std::nullopt;
}

void DeviceWatchdog::end_all(const Failure& failure) {
  link_.fail(failure);
  std::vector<std::shared_ptr<Entry>> entries;
  {
    const base::Lock lock(mutex_);
    entries.assign(entries_.begin(), entries_.end());
  }
  const auto reason = link_.failure().value_or(failure);
  std::set<Communicator*> aborted;
  for (const auto& entry : entries) {
    if (entry->flight->has_ended()) continue;
    if (aborted.insert(entry->communicator.get()).second) entry->communicator->abort();
  }
  for (const auto& entry : entries) entry->flight->fail(reason);
}

void DeviceWatchdog::loop() {
  while (true) {
    if (const auto failure = look()) end_all(*failure);
    drop_ended();
    bool idle = false;
    {
      const base::Lock lock(mutex_);
      idle = entries_.empty();
      if (idle && stopping_) return;
    }
    bell_->wait(idle ? std::nullopt : std::optional(Deadline::after(kInterval)));
  }
}

}  // namespace lockstep::comm

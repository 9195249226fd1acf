#include "base/relay.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <system_error>

#include "base/check.h"

namespace lockstep::base {

Relay::Relay(int most) : runners_(static_cast<std::size_t>(most)) {
  try {
    for (int number = 0; number < most; ++number)
      runners_[static_cast<std::size_t>(number)].thread =
          std::thread([this, number] { serve(number); });
  } catch (const std::system_error&) {
    close();
    throw Unavailable(
        fmt::format("the host starts no more threads: this worker needs {}, one for each of its "
                    "shards; raise the limit (ulimit -u)",
                    most));
  }
}

Relay::~Relay() {
  close();
}

void Relay::close() {
  {
    const Lock lock(mutex_);
    closes_ = true;
    for (Runner& runner : runners_) runner.its_turn.notify_one();
  }
  for (Runner& runner : runners_) {
    if (runner.thread.joinable()) runner.thread.join();
  }
}

void Relay::give_turn(int number) {
  turn_ = number;
  (number == kCaller ? ended_ : runners_[static_cast<std::size_t>(number)].its_turn).notify_one();
}

int Relay::first_from(int number) const {
  for (; number < static_cast<int>(runners_.size()); ++number) {
    if (!runners_[static_cast<std::size_t>(number)].ended) return number;
  }
  return kCaller;
}

void Relay::fail(std::exception_ptr error) {
  if (!error_) error_ = std::move(error);
}

void Relay::run(const std::vector<std::string>& names, const std::function<void(int)>& function) {
  LOCKSTEP_CHECK(names.size() <= runners_.size(), "a thread for each function");
  Lock lock(mutex_);
  function_ = &function;
  error_ = nullptr;
  for (std::size_t number = 0; number < names.size(); ++number) {
    Runner& runner = runners_[number];
    runner.name = names[number];
    runner.ended = false;
    runner.meeting.clear();
  }
  give_turn(first_from(0));
  while (turn_ != kCaller) lock.wait(ended_);
  if (error_) std::rethrow_exception(error_);
}

void Relay::serve(int number) {
  Runner& self = runners_[static_cast<std::size_t>(number)];
  Lock lock(mutex_);
  for (;;) {
    while (turn_ != number && !closes_) lock.wait(self.its_turn);
    if (closes_) return;
    if (!error_) {
      std::exception_ptr error;
      const auto& function = *function_;
      {
        const Unlock runs(mutex_);
        try {
          function(number);
        } catch (...) {
          error = std::current_exception();
        }
      }
      if (error) fail(std::move(error));
    }
    self.ended = true;
    int next = first_from(number + 1);
    // All that are left have come to a meeting, where this one does not come.
    if (next == kCaller && (next = first_from(0)) != kCaller) {
      const Runner& waiting = runners_[static_cast<std::size_t>(next)];
      fail(std::make_exception_ptr(BadInput(fmt::format(
          "{} has ended, and {} waits for it at {}: all of them must come to the same places",
          self.name, waiting.name, waiting.meeting))));
    }
    give_turn(next);
  }
}

// `number` is the last one that comes.
void Relay::check_meeting(int number) const {
  const Runner& last = runners_[static_cast<std::size_t>(number)];
  for (int other = 0; other < number; ++other) {
    const Runner& runner = runners_[static_cast<std::size_t>(other)];
    if (!runner.ended && runner.meeting == last.meeting) continue;
    throw BadInput(fmt::format("{} {}, and {} is at {}: all of them must come to the same places",
                               runner.name, runner.ended ? "has ended" : "is at " + runner.meeting,
                               last.name, last.meeting));
  }
}

void Relay::meet(int number, const std::string& name, const std::function<void()>& together) {
  Runner& self = runners_[static_cast<std::size_t>(number)];
  Lock lock(mutex_);
  if (error_) throw Abandoned();
  self.meeting = name;
  int next = first_from(number + 1);
  if (next == kCaller) {
    try {
      check_meeting(number);
      const Unlock runs(mutex_);
      together();
    } catch (...) {
      fail(std::current_exception());
    }
    next = first_from(0);
  }
  if (next != number) give_turn(next);
  while (turn_ != number) lock.wait(self.its_turn);
  if (error_) throw Abandoned();
}

}  // namespace lockstep::base

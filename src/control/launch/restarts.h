// How often workers that have died are started again. Pure: no clock and no processes.
//
//   place   a worker's number for its launcher; its replacement has the same
//
// A program that always crashes must end with its own message, not in a loop. So restarts are limited within any 10
// minutes, and a place whose processes die soon after their start waits longer and longer.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace lockstep::control {

// Threads:   one caller at a time.
// Blocking:  never; time is an argument.
// Failure:   none.
// Ownership: plain values.
class Restarts {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::minutes kWindow{10};
  static constexpr std::chrono::seconds kSoon{
      10};  // a process that lives longer is no crash at the start
  static constexpr std::chrono::seconds kFirstWait{1};  // doubled each time
  static constexpr std::chrono::seconds kLongestWait{30};

  explicit Restarts(int most) : most_(most) {}

  void on_start(int place, Clock::time_point now) { places_[place].started = now; }

  // Its process has died: when to start the next one. Nothing if no restart is left.
  std::optional<Clock::time_point> on_end(int place, Clock::time_point now);

  // The places to start now; each is returned once.
  std::vector<int> due(Clock::time_point now);

  // When due() has something, if at all.
  std::optional<Clock::time_point> next() const;

  int waiting() const { return static_cast<int>(waiting_.size()); }
  void drop() { waiting_.clear(); }  // nothing is started any more

 private:
  struct Place {
    std::optional<Clock::time_point> started;
    int deaths = 0;  // soon after the start, in a row
  };

  int most_;
  std::map<int, Place> places_;
  std::map<int, Clock::time_point> waiting_;
  std::multiset<Clock::time_point> granted_;
};

// Who has left a job whose workers may leave, and whether it goes on. It knows places only; JobState knows how they
// ended.
//
// Threads, Blocking, Failure, Ownership: as Restarts.
class Departures {
 public:
  using Clock = Restarts::Clock;
  struct Rules {
    int min_workers = 1;
    int max_restarts = 10;  // within 10 minutes
  };
  enum class After : std::uint8_t {
    kReplaced,   // a replacement starts
    kNoRestart,  // the others go on without it: no restart is left
    kFinishing,  // the others go on without it: some have reached the end of the job
    kTooFew,     // the job ends
  };
  struct Outcome {
    After after = After::kTooFew;
    Clock::duration wait{};  // until the replacement starts
  };

  explicit Departures(const Rules& rules)
      : min_workers_(rules.min_workers), restarts_(rules.max_restarts) {}

  void on_started(int place, Clock::time_point now) { restarts_.on_start(place, now); }
  void on_formed(const std::vector<int>& places) { members_ = {places.begin(), places.end()}; }
  void on_expelled(int place) { expelled_.insert(place); }

  // Its process has ended with 0. After that no member is replaced: the newcomer would find nobody to learn from.
  void on_ended_well(int place);

  // Its process has died, and this many others live.
  Outcome on_left(int place, int live, Clock::time_point now);

  // As Restarts.
  std::vector<int> due(Clock::time_point now);
  std::optional<Clock::time_point> next() const { return restarts_.next(); }
  bool waiting() const { return restarts_.waiting() > 0; }

  // Every member of the last generation has ended, at least one of them with 0. Who still lives has never joined.
  bool done() const { return finishing_ && members_.empty(); }
  bool expelled(int place) const { return expelled_.contains(place); }
  int left() const { return left_; }
  int replaced() const { return replaced_; }

 private:
  int min_workers_;
  Restarts restarts_;
  std::set<int> members_;  // of the last generation, without those that have ended since
  std::set<int> expelled_;
  bool finishing_ = false;
  int left_ = 0;
  int replaced_ = 0;
};

}  // namespace lockstep::control

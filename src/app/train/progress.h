// What the leader shows while it trains: a bar on a terminal, plain lines where it is piped.
#pragma once

#include <lockstep/trainer.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace lockstep::app {

// The leader's progress, from its first step to the end of the object.
//
// Threads:   one caller at a time.
// Blocking:  not for a reader that has stopped: what it does not take at once is dropped.
// Failure:   none here; check_said() tells of a full disk (base/standard_output.h).
// Ownership: writes to standard output.
class Progress {
 public:
  struct Size {
    std::int64_t total_steps = 0;
    std::int64_t global_batch = 0;
  };
  enum class Kind { kSilent, kLines, kBar };

  // `speaks`: whether this worker is the leader now.
  Progress(Kind kind, const Size& size, std::function<bool()> speaks);
  ~Progress();

  void step(const StepRecord& record);
  void epoch(std::int64_t epoch, const Evaluation& evaluation);
  void line(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;
  std::string status(const StepRecord& record) const;
  void clear_bar();

  Kind kind_;
  Size size_;
  std::function<bool()> speaks_;
  Clock::time_point began_ = Clock::now();
  Clock::time_point shown_{};
  std::int64_t first_step_ = -1;
  bool bar_shown_ = false;
};

// A bar for a terminal, lines for a pipe, nothing when asked to be quiet.
Progress::Kind progress_kind(bool quiet);

// "1 h 02 min", "3 min 20 s", "12.5 s"
std::string spoken_time(double seconds);

// 12345678 → "12,345,678"
std::string with_commas(std::int64_t number);

}  // namespace lockstep::app

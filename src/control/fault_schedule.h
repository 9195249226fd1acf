// Which faults a job gets on purpose, as a text. LOCKSTEP_FAULTS, --faults and inject_faults() have the same: a list,
// separated by commas, of faults and of rates.
//
//   KIND@STEP:WORKER:WHERE[:DETAIL]   one fault          kill@5:1:update    slow@7:0:forward:200ms
//   KIND=[DETAIL:]RATE/UNIT           faults at random   kill=1/min         slow=200ms:0.5/min      crash=0.1/step
//
// KIND is what happens to a worker (kKinds). WORKER is its number for the launcher. WHERE is a point of a step:
//
//   read         a loader thread is about to read a batch of the step, perhaps some steps ahead
//   forward      before the first shard                 backward     after the last shard
//   reduce       all numbers of the step before are there
//   losses       before the losses are exchanged, where workers share no memory
//   small        the small values are on the commit page
//   intent       the intent is there                    torn         half of a piece is written
//   update       a piece is written                     written      all pieces of this worker are
//   commit       the step is committed                  numbers      before its numbers are sent
//   hook         before a function of the program that is called for the step
//   checkpoint   before its copy is made                file         before the copy is written to the disk
//   evaluation   before one
//   regroup      before the next generation forms       join         a worker that joins is about to get the state
//
// STEP is the number of the step, from 0; at checkpoint and evaluation the number of steps that are done; at join the
// generation that the worker joins, or 0 for any. Or it is `every`, of slow: each time that the worker passes the point.
//
// A rate is that of the whole job. Its seed gives a sequence of (gap, worker, point), the same each time: a Stream. UNIT is
// s, min, h or step; gaps are exponentially distributed. A fault is due when its time or step has come, and strikes when
// its worker next passes its point. When that is depends on the machine if the unit is a time, and only on the job if it
// is a step.
#pragma once

#include <chrono>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::control {

enum class FaultKind : std::uint8_t { kKill, kStop, kCrash, kSlow, kCut, kFlip, kDisk, kMemory };

struct Fault {
  static constexpr std::int64_t kEveryStep = -1;

  FaultKind kind = FaultKind::kKill;
  std::int64_t step = 0;
  int worker = 0;
  std::string where;
  std::string detail;  // of slow: for how long, such as 200ms; of flip: weights, state or gradients

  bool operator==(const Fault&) const = default;
};
// As the schedule has it.
std::string to_string(const Fault& fault);
// Of slow.
std::chrono::milliseconds time_of(const Fault& fault);

struct FaultRate {
  FaultKind kind = FaultKind::kKill;
  std::string detail;
  double gap = 0;  // the mean, in seconds or steps
  bool by_step = false;

  bool operator==(const FaultRate&) const = default;
};

struct FaultSchedule {
  std::vector<Fault> faults;
  std::vector<FaultRate> rates;

  bool empty() const { return faults.empty() && rates.empty(); }
};

// BadInput, in one line, naming the part that is wrong and all words that are allowed.
FaultSchedule parse_faults(std::string_view text);

// The points at which this kind may strike.
std::span<const std::string_view> points_of(FaultKind kind);

// The faults of one rate, one after the other, for a job of so many workers. Those at `join` are not in it: joins().
//
// Threads:   one caller.
// Failure:   none.
class FaultStream {
 public:
  FaultStream(const FaultRate& rate, std::uint64_t seed, int workers);

  // The fault that comes next. Its time in seconds since the job began, or its step: not before that.
  const Fault& next() const { return next_; }
  double at() const { return at_; }
  void pop();

  const FaultRate& rate() const { return rate_; }

 private:
  FaultRate rate_;
  int workers_;
  std::mt19937_64 bits_;
  Fault next_;
  double at_ = 0;
};

// Whether a worker that joins this generation is struck there by a fault of the rate: a share of all faults that is that
// of any other point.
bool joins_badly(const FaultRate& rate, std::uint64_t seed, int worker, std::uint64_t generation);

}  // namespace lockstep::control

#include "control/fault_schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "base/choice.h"
#include "base/environment.h"

namespace lockstep::control {
namespace {

constexpr base::Choice<FaultKind> kKinds[] = {
    {FaultKind::kKill, "kill"}, {FaultKind::kStop, "stop"}, {FaultKind::kCrash, "crash"},
    {FaultKind::kSlow, "slow"}, {FaultKind::kCut, "cut"},   {FaultKind::kFlip, "flip"},
    {FaultKind::kDisk, "disk"}, {FaultKind::kMemory, "oom"}};

// `torn` first and `join` last. A worker whose memory was torn must die, or it would train with it.
constexpr std::array<std::string_view, 18> kPoints = {
    "torn",  "read",       "forward", "backward",   "reduce",  "losses",
    "small", "intent",     "update",  "written",    "commit",  "numbers",
    "hook",  "checkpoint", "file",    "evaluation", "regroup", "join"};
// Where the program's code runs, or the disk's: an exception is an answer there.
constexpr std::array<std::string_view, 6> kProgramPoints = {"read", "forward",    "backward",
                                                            "hook", "checkpoint", "evaluation"};
// While a loop has the models.
constexpr std::array<std::string_view, 10> kModelPoints = {
    "forward", "backward", "reduce",  "small",      "intent",
    "written", "commit",   "numbers", "checkpoint", "evaluation"};
constexpr std::array<std::string_view, 1> kDiskPoints = {"checkpoint"};
constexpr std::array<std::string_view, 3> kMemories = {"weights", "state", "gradients"};

struct Unit {
  std::string_view name;
  double gap;  // seconds, or steps
};
constexpr std::string_view kEvery = "every";
constexpr std::array<Unit, 4> kUnits = {{{"s", 1}, {"min", 60}, {"h", 3600}, {"step", 1}}};
constexpr double kLeastGap = 1e-3;
constexpr double kMostGap = 1e9;
constexpr std::int64_t kMostWorkers = 1 << 16;
constexpr std::int64_t kLongest = 3'600'000;  // ms

template <typename Range>
bool contains(const Range& all, std::string_view one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

// One line of a message, whatever was given.
std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 100;
  std::string line(text.substr(0, kMost));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
  }
  return text.size() > kMost ? line + "..." : line;
}

[[noreturn]] void refuse(std::string_view text, const std::string& why = "") {
  std::vector<std::string_view> kinds;
  for (const auto& kind : kKinds) kinds.push_back(kind.word);
  throw BadInput(fmt::format(
      "\"{}\" is no fault{}; write KIND@STEP:WORKER:WHERE, such as kill@5:1:update or "
      "slow@5:1:forward:200ms, or KIND=RATE/UNIT, such as kill=1/min, slow=200ms:0.5/min or "
      "crash=0.1/step. KIND is one of {}; WHERE is one of {}; UNIT is s, min, h or step",
      shown(text), why, fmt::join(kinds, ", "), fmt::join(kPoints, ", ")));
}

// The text up to the separator; the rest stays.
std::string_view cut(std::string_view& text, char separator) {
  const auto at = std::min(text.find(separator), text.size());
  const std::string_view first = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return first;
}

// "200ms" or "2s"; nothing if it is neither.
std::optional<std::int64_t> milliseconds_in(std::string_view text) {
  const std::int64_t factor = text.ends_with("ms") ? 1 : text.ends_with("s") ? 1000 : 0;
  if (factor == 0) return std::nullopt;
  text.remove_suffix(factor == 1 ? 2 : 1);
  const auto number = base::parse_number(text);
  if (!number || *number < 1 || *number > kLongest / factor) return std::nullopt;
  return *number * factor;
}

void check_detail(FaultKind kind, std::string_view detail, std::string_view whole) {
  if (kind == FaultKind::kSlow) {
    if (!milliseconds_in(detail)) refuse(whole, ": slow wants a time, 1ms to 3600s");
  } else if (kind == FaultKind::kFlip) {
    if (!detail.empty() && !contains(kMemories, detail))
      refuse(whole, ": flip takes weights, state or gradients");
  } else if (!detail.empty()) {
    refuse(whole);
  }
}

Fault parse_fault(std::string_view text) {
  const std::string_view whole = text;
  const auto kind = base::choice_named(cut(text, '@'), kKinds);
  const std::string_view when = cut(text, ':');
  const bool every = when == kEvery && kind == FaultKind::kSlow;
  const auto step = every ? Fault::kEveryStep : base::parse_number(when);
  const auto worker = base::parse_number(cut(text, ':'));
  const bool has_detail = text.find(':') != std::string_view::npos;
  const std::string_view where = cut(text, ':');
  if (!kind || !contains(kPoints, where) || !step || (*step < 0 && !every) || !worker ||
      *worker < 0 || *worker > kMostWorkers || (has_detail && text.empty()))
    refuse(whole);
  check_detail(*kind, text, whole);
  if (!contains(points_of(*kind), where)) {
    refuse(whole, fmt::format(": {} can strike at {}", base::word_for(*kind, kKinds),
                              fmt::join(points_of(*kind), ", ")));
  }
  return {*kind, *step, static_cast<int>(*worker), std::string(where), std::string(text)};
}

FaultRate parse_rate(std::string_view text) {
  const std::string_view whole = text;
  const auto kind = base::choice_named(cut(text, '='), kKinds);
  if (!kind) refuse(whole);
  FaultRate rate{.kind = *kind};
  if (text.find(':') != std::string_view::npos) {
    rate.detail = cut(text, ':');
    if (rate.detail.empty()) refuse(whole);
  }
  const auto number = base::parse_real(cut(text, '/'));
  const auto* const unit =
      std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& one) { return one.name == text; });
  if (!number || unit == kUnits.end()) refuse(whole);
  check_detail(*kind, rate.detail, whole);
  rate.by_step = unit->name == "step";
  rate.gap = *number > 0 ? unit->gap / *number : 0;
  if (!(rate.gap >= kLeastGap && rate.gap <= kMostGap))
    refuse(whole, ": a rate is above 0, and at most 1000 for each second or step");
  return rate;
}

// In [0, 1). The distributions of the standard library differ from one to another.
double uniform(std::mt19937_64& bits) {
  return static_cast<double>(bits() >> 11) * 0x1p-53;
}

std::uint64_t seed_of(const FaultRate& rate, std::uint64_t seed) {
  return seed * 64 + static_cast<std::uint64_t>(rate.kind);
}

}  // namespace

std::span<const std::string_view> points_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::kKill:
    case FaultKind::kCrash:
      return kPoints;
    case FaultKind::kStop:
    case FaultKind::kSlow:
    case FaultKind::kCut:
      return std::span(kPoints).subspan(1);
    case FaultKind::kFlip:
      return kModelPoints;
    case FaultKind::kDisk:
      return kDiskPoints;
    case FaultKind::kMemory:
      break;
  }
  return kProgramPoints;
}

FaultSchedule parse_faults(std::string_view text) {
  FaultSchedule schedule;
  while (!text.empty()) {
    const std::string_view part = cut(text, ',');
    const bool is_rate = part.find('=') != std::string_view::npos;
    if (is_rate) {
      schedule.rates.push_back(parse_rate(part));
    } else {
      schedule.faults.push_back(parse_fault(part));
    }
  }
  return schedule;
}

std::string to_string(const Fault& fault) {
  const std::string step =
      fault.step == Fault::kEveryStep ? std::string(kEvery) : std::to_string(fault.step);
  return fmt::format("{}@{}:{}:{}{}{}", base::word_for(fault.kind, kKinds), step, fault.worker,
                     fault.where, fault.detail.empty() ? "" : ":", fault.detail);
}

std::chrono::milliseconds time_of(const Fault& fault) {
  return std::chrono::milliseconds(milliseconds_in(fault.detail).value_or(0));
}

FaultStream::FaultStream(const FaultRate& rate, std::uint64_t seed, int workers)
    : rate_(rate), workers_(workers), bits_(seed_of(rate, seed)) {
  pop();
}

void FaultStream::pop() {
  std::span<const std::string_view> points = points_of(rate_.kind);
  if (points.back() == "join") points = points.first(points.size() - 1);
  at_ += -std::log1p(-uniform(bits_)) * rate_.gap;
  next_ = {.kind = rate_.kind,
           .worker = static_cast<int>(bits_() % static_cast<std::uint64_t>(workers_)),
           .where = std::string(points[bits_() % points.size()]),
           .detail = rate_.detail};
  const std::uint64_t memory = bits_();  // drawn in any case, so that a detail changes nothing else
  if (rate_.kind == FaultKind::kFlip && rate_.detail.empty())
    next_.detail = kMemories[memory % kMemories.size()];
}

bool joins_badly(const FaultRate& rate, std::uint64_t seed, int worker, std::uint64_t generation) {
  const auto points = points_of(rate.kind);
  if (points.back() != "join") return false;
  std::mt19937_64 bits((seed_of(rate, seed) * 31 + generation) * kMostWorkers +
                       static_cast<std::uint64_t>(worker));
  return bits() % points.size() == 0;
}

}  // namespace lockstep::control

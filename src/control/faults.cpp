#include "control/faults.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <utility>

#include "base/environment.h"

namespace lockstep::control {
namespace {

struct Kind {
  std::string_view name;
  int signal;
};
constexpr std::array<Kind, 3> kKinds{{{"kill", SIGKILL}, {"stop", SIGSTOP}, {"crash", SIGSEGV}}};
constexpr std::array<std::string_view, 15> kPlaces = {
    "forward", "backward", "reduce",     "small", "intent",     "torn",    "update", "written",
    "commit",  "numbers",  "checkpoint", "disk",  "evaluation", "regroup", "join"};

[[noreturn]] void refuse(std::string_view text) {
  throw BadInput(fmt::format(
      "LOCKSTEP_FAULTS: \"{}\" is no fault; write KIND@STEP:WORKER:WHERE, such as kill@5:1:update. "
      "KIND is kill, stop or crash; WHERE is one of {}",
      text, fmt::join(kPlaces, ", ")));
}

// The text up to the separator; the rest stays.
std::string_view cut(std::string_view& text, char separator) {
  const auto at = std::min(text.find(separator), text.size());
  const std::string_view first = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return first;
}

Fault parse_fault(std::string_view text) {
  const std::string_view whole = text;
  Fault fault;
  fault.kind = cut(text, '@');
  const auto step = base::parse_number(std::string(cut(text, ':')));
  const auto worker = base::parse_number(std::string(cut(text, ':')));
  fault.where = text;
  const bool kind = std::any_of(kKinds.begin(), kKinds.end(),
                                [&](const Kind& one) { return one.name == fault.kind; });
  const bool where = std::find(kPlaces.begin(), kPlaces.end(), fault.where) != kPlaces.end();
  if (!kind || !where || !step || *step < 0 || !worker || *worker < 0 || *worker > 1 << 16)
    refuse(whole);
  fault.step = *step;
  fault.worker = static_cast<int>(*worker);
  return fault;
}

}  // namespace

std::vector<Fault> parse_faults(std::string_view text) {
  std::vector<Fault> faults;
  while (!text.empty()) faults.push_back(parse_fault(cut(text, ',')));
  return faults;
}

Faults& Faults::here() {
  static Faults faults = [] {
    auto all = parse_faults(base::environment("LOCKSTEP_FAULTS").value_or(""));
    const auto worker = base::environment_number("RANK", 0, 1 << 16).value_or(0);
    std::erase_if(all, [worker](const Fault& fault) { return fault.worker != worker; });
    return Faults(std::move(all));
  }();
  return faults;
}

void Faults::joined_later() {
  std::erase_if(left_, [](const Fault& fault) { return fault.where != "join"; });
}

bool Faults::due(std::string_view where, std::int64_t step) const {
  return std::any_of(left_.begin(), left_.end(), [&](const Fault& fault) {
    return fault.where == where && (fault.step == step || where == "join");
  });
}

void Faults::happen(std::string_view where, std::int64_t step) {
  const auto found = std::find_if(left_.begin(), left_.end(), [&](const Fault& fault) {
    return fault.where == where && (fault.step == step || where == "join");
  });
  const auto kind = std::find_if(kKinds.begin(), kKinds.end(),
                                 [&](const Kind& one) { return one.name == found->kind; });
  left_.erase(found);
  std::raise(kind->signal);
}

}  // namespace lockstep::control

// Facts judged: what is fine, what is slow, what is missing, and the next step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/doctor/facts.h"

namespace lockstep::app {

enum class Level : std::uint8_t {
  kOk,       // as it should be
  kNote,     // good to know
  kSlow,     // works, and costs speed
  kMissing,  // something cannot work
};
const char* name(Level level) noexcept;

struct Finding {
  Level level = Level::kOk;
  std::string topic;   // "blas", "memory" …
  std::string text;    // what is so
  std::string next;    // what to do about it; empty where there is nothing
  bool fatal = false;  // Lockstep cannot be used here at all

  bool operator==(const Finding&) const = default;
};

// A pure function of the facts; the order is that of the report.
std::vector<Finding> diagnose(const Facts& facts);

// The report for people, and for programs.
std::string as_text(const std::vector<Finding>& findings);
std::string as_json(const std::vector<Finding>& findings);

// 1 when a finding is fatal, else 0.
int exit_code(const std::vector<Finding>& findings);

}  // namespace lockstep::app

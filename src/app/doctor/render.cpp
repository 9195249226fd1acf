#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/doctor/diagnose.h"

namespace lockstep::app {
namespace {

std::string summary(const std::vector<Finding>& findings) {
  const auto count = [&](Level level) {
    return std::count_if(findings.begin(), findings.end(),
                         [level](const Finding& finding) { return finding.level == level; });
  };
  const auto slow = count(Level::kSlow);
  const auto missing = count(Level::kMissing);
  if (exit_code(findings) != 0) return "Lockstep cannot be used here until the above is mended.\n";
  if (slow == 0 && missing == 0) return "All is well.\n";
  return fmt::format("{} slow, {} missing: each line above says what to do.\n", slow, missing);
}

}  // namespace

std::string as_text(const std::vector<Finding>& findings) {
  std::string text;
  for (const auto& finding : findings) {
    text += fmt::format("{:<8} {:<14} {}\n", name(finding.level), finding.topic, finding.text);
    if (!finding.next.empty()) text += fmt::format("{:<23} -> {}\n", "", finding.next);
  }
  return text + "\n" + summary(findings);
}

std::string as_json(const std::vector<Finding>& findings) {
  auto list = nlohmann::json::array();
  for (const auto& finding : findings) {
    list.push_back({{"level", name(finding.level)},
                    {"topic", finding.topic},
                    {"text", finding.text},
                    {"next", finding.next},
                    {"fatal", finding.fatal}});
  }
  const nlohmann::json report = {{"findings", std::move(list)},
                                 {"usable", exit_code(findings) == 0}};
  // Names of devices come from drivers and may hold any byte.
  return report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::app

// Addresses, Slurm's notation, seconds, and whole environments. The input is lines of NAME=VALUE.
#include <lockstep/errors.h>

#include <algorithm>
#include <map>

#include "control/launcher_environment.h"
#include "fuzz.h"

using namespace lockstep::control;
using lockstep::fuzz::require;

namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

Variables parse(std::string_view text) {
  Variables variables;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    variables[std::string(line.substr(0, equals))] = line.substr(equals + 1);
  }
  return variables;
}

void try_address(std::string_view text) {
  try {
    const Address address = parse_address(text);
    require(parse_address(to_string(address)) == address,
            "an address is read back as it was written");
  } catch (const lockstep::BadInput&) {
  }
}

void try_seconds(std::string_view text) {
  try {
    require(parse_seconds(text, "T").count() > 0, "a time is positive");
  } catch (const lockstep::BadInput&) {
  }
}

void try_launch_info(const Variables& variables) {
  const auto lookup = [&variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end() || found->second.empty()) return std::nullopt;
    return found->second;
  };
  try {
    const LaunchInfo info = find_launch_info(lookup, 1000);
    require(info.rank >= 0 && info.rank < info.size, "a rank is within the world");
    require(info.local_rank >= 0 && info.local_rank < info.local_size, "and on its host");
    require(info.local_size <= info.size, "a host has no more workers than the world");
  } catch (const lockstep::BadInput&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = lockstep::fuzz::as_text(data, size);
  try_address(text);
  try_seconds(text);
  const auto tasks = slurm_tasks_of_node(text, 3);
  require(!tasks || *tasks > 0, "a node has tasks");
  try_launch_info(parse(text));
  return 0;
}

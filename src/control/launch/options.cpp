#include "control/launch/options.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <climits>
#include <string_view>

#include "base/environment.h"
#include "control/fault_schedule.h"
#include "control/rendezvous/address.h"

namespace lockstep::control {
namespace {

// They number the workers and let them in. Another value could only break the job.
constexpr std::array<std::string_view, 16> kOwnVariables = {"RANK",
                                                            "LOCAL_RANK",
                                                            "WORLD_SIZE",
                                                            "LOCAL_WORLD_SIZE",
                                                            "GROUP_RANK",
                                                            "GROUP_WORLD_SIZE",
                                                            "ROLE_RANK",
                                                            "ROLE_WORLD_SIZE",
                                                            "LOCKSTEP_RENDEZVOUS",
                                                            "LOCKSTEP_SECRET_FD",
                                                            "LOCKSTEP_SECRET_FILE",
                                                            "LOCKSTEP_LOSS_FD",
                                                            "LOCKSTEP_NEWS_FD",
                                                            "LOCKSTEP_ELASTIC",
                                                            "LOCKSTEP_PLACES",
                                                            "TORCHELASTIC_USE_AGENT_STORE"};

bool is_variable_name(std::string_view name) {
  const auto allowed = [](char c) {
    return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0;
  };
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name.front())) == 0 &&
         std::all_of(name.begin(), name.end(), allowed);
}

void check_secret_given(const NodeOptions& nodes) {
  if (!nodes.secret_file.empty() || nodes.lifeline) return;
  throw BadInput(
      "add --secret-file FILE, the same on every host; make it with: (umask 077; openssl rand "
      "-hex 32 > FILE)");
}

void check_join(const NodeOptions& nodes) {
  if (nodes.nodes != 1 || nodes.rank != 0 || !nodes.rendezvous.empty()) {
    throw BadInput(
        "--join takes the place of --nodes, --node-rank and --rendezvous: the job that runs gives "
        "this host its number; leave them out");
  }
  if (parse_address(nodes.join).kind != Address::Kind::kTcp)
    throw BadInput(fmt::format("--join {} reaches one host only; give HOST:PORT", nodes.join));
  check_secret_given(nodes);
}

// What all hosts must be given, and the same everywhere but --node-rank.
void check_nodes(const NodeOptions& nodes) {
  if (!nodes.join.empty()) return check_join(nodes);
  if (nodes.nodes < 1 || nodes.nodes > kMostHosts) {
    throw BadInput(
        fmt::format("--nodes {} is not possible; ask for 1 to {}", nodes.nodes, kMostHosts));
  }
  if (nodes.rank < 0 || nodes.rank >= nodes.nodes) {
    throw BadInput(fmt::format("--node-rank {} is not possible; count the {} host{} from 0 to {}",
                               nodes.rank, nodes.nodes, nodes.nodes == 1 ? "" : "s",
                               nodes.nodes - 1));
  }
  if (one_host(nodes)) {
    if (nodes.secret_file.empty()) return;
    throw BadInput(
        "--secret-file requires --nodes, --join or --rendezvous: it is for several hosts");
  }
  if (nodes.rendezvous.empty()) {
    throw BadInput(
        "where do the hosts meet? add --rendezvous HOST:PORT, with the host of --node-rank 0 and a "
        "free port there");
  }
  if (parse_address(nodes.rendezvous).kind != Address::Kind::kTcp) {
    throw BadInput(
        fmt::format("--rendezvous {} reaches one host only; give HOST:PORT", nodes.rendezvous));
  }
  check_secret_given(nodes);
}

void check_can_be_joined(const RunOptions& options) {
  const bool alone = options.nodes.nodes == 1 && options.nodes.join.empty();
  if (!alone || one_host(options.nodes) || elastic(options) || !options.hosts.list.empty()) return;
  throw BadInput(
      "--rendezvous is where several hosts meet: add --nodes, or --hosts; or --max-restarts, so "
      "that hosts can join this one later");
}

void check_elastic(const RunOptions& options) {
  if (!elastic(options)) return;
  const bool here_only = options.hosts.list.empty() && one_host(options.nodes);
  if (options.most_workers && !here_only) {
    throw BadInput(
        fmt::format("a number of workers that may change, such as {}:{}, works on one host so far; "
                    "give one number",
                    options.min_workers.value_or(kMinWorkers), *options.most_workers));
  }
  const int least = options.min_workers.value_or(kMinWorkers);
  if (least < 1 || (here_only && least > options.workers)) {
    throw BadInput(fmt::format("--min-workers {} is not possible with {} worker{}; ask for 1 to {}",
                               least, options.workers, options.workers == 1 ? "" : "s",
                               options.workers));
  }
  const int most = options.max_restarts.value_or(kMaxRestarts);
  if (most < 0 || most > 1'000'000) {
    throw BadInput(fmt::format("--max-restarts {} is not possible; ask for 0 to 1000000", most));
  }
  const double step_timeout_s = options.step_timeout_s.value_or(kStepTimeout);
  if (!(step_timeout_s > 0 && step_timeout_s <= 86400)) {
    throw BadInput(fmt::format(
        "--step-timeout {:g} is not possible; give seconds, more than 0 and at most 86400",
        step_timeout_s));
  }
  if (options.timeout_s && *options.timeout_s <= step_timeout_s) {
    throw BadInput(fmt::format(
        "--timeout {} must be longer than --step-timeout {:g}, or the workers that wait end before "
        "the one that they wait for",
        *options.timeout_s, step_timeout_s));
  }
}

// Also if they were exported: a worker would find out too late.
void check_faults(const RunOptions& options) {
  const std::string text = faults_of(options);
  const char* const name = text == options.faults ? "--faults" : "LOCKSTEP_FAULTS";
  FaultSchedule schedule;
  try {
    schedule = parse_faults(text);
  } catch (const BadInput& error) {
    throw BadInput(fmt::format("{}: {}", name, error.what()));
  }
  if (options.fault_seed && (schedule.rates.empty() || *options.fault_seed < 0)) {
    throw BadInput(
        "--fault-seed is a number from 0 on, for --faults with a rate, such as kill=1/min");
  }
  const bool here_only = options.hosts.list.empty() && one_host(options.nodes);
  for (const Fault& fault : schedule.faults) {
    if (!here_only || fault.worker < places(options)) continue;
    throw BadInput(fmt::format("{}: {} is for worker {}, and the job has 0 to {}", name,
                               to_string(fault), fault.worker, places(options) - 1));
  }
}

}  // namespace

std::optional<WorkersAsked> parse_workers(const std::string& option, const std::string& text) {
  const auto number_in = [](const std::string& digits) -> std::optional<int> {
    const auto number = base::parse_number(digits);
    if (!number || *number < INT_MIN || *number > INT_MAX) return std::nullopt;
    return static_cast<int>(*number);
  };
  const auto colon = text.find(':');
  const auto least = number_in(text.substr(0, colon));
  if (!least) return std::nullopt;
  if (colon == std::string::npos) return WorkersAsked{*least, std::nullopt};
  const auto most = number_in(text.substr(colon + 1));
  if (!most) return std::nullopt;
  if (*least > *most) {
    throw BadInput(fmt::format("{} {}: the least comes first; did you mean {}:{}?", option, text,
                               *most, *least));
  }
  if (*least < 1 || *most > kMostWorkers) {
    throw BadInput(fmt::format("{} {} is not possible; ask for 1 to {} workers, as in 2:8", option,
                               text, kMostWorkers));
  }
  return WorkersAsked{*least, *most};
}

std::pair<std::string, std::string> parse_variable(const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos || !is_variable_name(std::string_view(text).substr(0, equals))) {
    throw BadInput(
        fmt::format("--env {} is not KEY=VALUE; write for example --env NCCL_DEBUG=INFO", text));
  }
  std::string name = text.substr(0, equals);
  if (std::find(kOwnVariables.begin(), kOwnVariables.end(), name) != kOwnVariables.end()) {
    throw BadInput(fmt::format(
        "--env cannot set {}: the launcher sets it for each worker; leave it out", name));
  }
  return {std::move(name), text.substr(equals + 1)};
}

std::string faults_of(const RunOptions& options) {
  std::string text =
      options.faults.empty() ? base::environment("LOCKSTEP_FAULTS").value_or("") : options.faults;
  for (const auto& [name, value] : options.variables) {
    if (name == "LOCKSTEP_FAULTS") text = value;
  }
  return text;
}

void check(const RunOptions& options) {
  if (options.workers < 1 || options.workers > kMostWorkers) {
    throw BadInput(fmt::format("-n {} is not possible; ask for 1 to {} workers, such as -n 2",
                               options.workers, kMostWorkers));
  }
  check_can_be_joined(options);
  check_nodes(options.nodes);
  if (options.command.empty() || options.command.front().empty()) {
    throw BadInput(
        "no program to run; add it after --, as in: lockstep run -n 2 -- ./train --epochs 3");
  }
  if (options.threads && (*options.threads < 1 || *options.threads > kMostThreads)) {
    throw BadInput(fmt::format("--threads {} is not possible; ask for 1 to {}", *options.threads,
                               kMostThreads));
  }
  constexpr int kYearSeconds = 365 * 24 * 3600;
  if (options.timeout_s && (*options.timeout_s < 1 || *options.timeout_s > kYearSeconds)) {
    throw BadInput(fmt::format("--timeout {} is not possible; give whole seconds from 1 to {}",
                               *options.timeout_s, kYearSeconds));
  }
  check_elastic(options);
  check_faults(options);
  if (options.grace.count() < 0 || options.grace > std::chrono::hours(24)) {
    throw BadInput(fmt::format("--grace {} is not possible; give seconds from 0 to 86400",
                               static_cast<double>(options.grace.count()) / 1000));
  }
}

}  // namespace lockstep::control

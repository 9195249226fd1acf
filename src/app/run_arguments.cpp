#include "app/run_arguments.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>

#include "base/command_line.h"

namespace lockstep::app {
namespace {

constexpr std::array<std::string_view, 10> kWithValue = {
    "-n",        "--workers", "--env",   "--log-dir", "--timeout",
    "--threads", "--engine",  "--grace", "--device",  "-e"};

bool takes_next(std::string_view argument) {
  return std::find(kWithValue.begin(), kWithValue.end(), argument) != kWithValue.end();
}

}  // namespace

SplitArguments split_command(const std::vector<std::string>& arguments) {
  auto at = arguments.begin();
  while (at != arguments.end() && *at != "--" && at->size() > 1 && at->front() == '-') {
    at += takes_next(*at) && at + 1 != arguments.end() ? 2 : 1;
  }
  SplitArguments split{{arguments.begin(), at}, {}};
  if (at != arguments.end() && *at == "--") ++at;
  split.command.assign(at, arguments.end());
  return split;
}

control::RunOptions parse_run_arguments(const std::vector<std::string>& arguments) {
  SplitArguments split = split_command(arguments);
  control::RunOptions options;
  options.command = std::move(split.command);
  std::vector<std::string> variables;
  double grace_s = 10;
  std::optional<int> workers;

  CLI::App parser;
  parser.set_help_flag();
  base::add_number(parser, "-n,--workers", workers);
  parser.add_option("-e,--env", variables)->allow_extra_args(false);
  parser.add_option("--log-dir", options.log_dir);
  base::add_number(parser, "--timeout", options.timeout_s);
  base::add_number(parser, "--threads", options.threads);
  parser.add_option("--engine", options.engine);
  parser.add_option("--device", options.device);
  base::add_number(parser, "--grace", grace_s);
  parser.add_flag("-q,--quiet", options.quiet);
  base::parse_words(parser, split.own, [](const std::string& text) {
    throw BadInput(fmt::format("{}; see `lockstep run --help`", text));
  });
  if (!workers) throw BadInput("how many workers? add -n, as in: lockstep run -n 2 -- ./train");
  options.workers = *workers;
  for (const auto& text : variables) options.variables.push_back(control::parse_variable(text));
  if (!std::isfinite(grace_s) || std::abs(grace_s) > 1e6) {
    throw BadInput(
        fmt::format("--grace {} is not possible; give seconds from 0 to 86400", grace_s));
  }
  options.grace = std::chrono::milliseconds(static_cast<std::int64_t>(grace_s * 1000));
  return options;
}

}  // namespace lockstep::app

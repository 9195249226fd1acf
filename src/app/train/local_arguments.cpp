#include "app/train/local_arguments.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <limits>
#include <utility>
#include <vector>

#include "app/train/arguments.h"
#include "base/command_line.h"
#include "base/environment.h"

namespace lockstep::app {
namespace {

constexpr base::Choice<LocalState> kStates[] = {{LocalState::kKept, "kept"},
                                                {LocalState::kAveraged, "averaged"},
                                                {LocalState::kReset, "reset"}};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char letter : text) {
    if (letter == at)
      parts.emplace_back();
    else
      parts.back() += letter;
  }
  return parts;
}

std::vector<LocalSteps::Stage> stages_of(const std::string& text) {
  const auto refuse = [&] {
    throw BadInput(
        fmt::format("--local-steps {}: give a number of steps, as 50, or several with the step "
                    "that each begins "
                    "with, as 1,1000:16",
                    text));
  };
  std::vector<LocalSteps::Stage> stages;
  for (const std::string& part : split(text, ',')) {
    const auto words = split(part, ':');
    const auto from = words.size() == 2 ? base::parse_number(words[0]) : 0;
    const auto steps = base::parse_number(words.back());
    if (words.size() > 2 || !from || !steps || (words.size() == 2) != !stages.empty()) refuse();
    stages.push_back({*from, *steps});
  }
  return stages;
}

void set_outer(const std::string& text, LocalSteps& local) {
  const auto words = split(text, ':');
  const auto number = [&](std::size_t word) {
    const auto value = base::parse_real(words[word]);
    if (!value) throw BadInput(fmt::format("--outer {}: '{}' is no number", text, words[word]));
    return *value;
  };
  local.outer_nesterov = words[0] == "nesterov";
  const bool sgd = words[0] == "sgd" && (words.size() == 2 || words.size() == 3);
  if (local.outer_nesterov && words.size() == 1) {
    const LocalSteps paper = LocalSteps::diloco();
    local.outer_lr = paper.outer_lr;
    local.outer_momentum = paper.outer_momentum;
  } else if (sgd || (local.outer_nesterov && words.size() == 3)) {
    local.outer_lr = number(1);
    if (words.size() == 3) local.outer_momentum = number(2);
  } else if (text != "mean") {
    throw BadInput(fmt::format(
        "--outer {}: choose mean, nesterov, nesterov:RATE:MOMENTUM, sgd:RATE or sgd:RATE:MOMENTUM",
        text));
  }
}

// --local-steps says how often each fragment is exchanged; a round exchanges one.
void set_fragments(const std::string& text, LocalSteps& local) {
  const auto words = split(text, ':');
  const auto count = base::parse_number(words[0]);
  const auto keep = words.size() == 2 ? base::parse_real(words[1]) : Streaming().keep;
  if (words.size() > 2 || !count || *count < 2 || *count > std::numeric_limits<int>::max() || !keep)
    throw BadInput(fmt::format(
        "--fragments {}: give a number of fragments, 2 or more, or with what a shard keeps of its "
        "own weights, as 4:0.5",
        text));
  for (auto& [from, steps] : local.stages) {
    if (steps > 0 && steps % *count == 0) {
      steps /= *count;
      continue;
    }
    throw BadInput(fmt::format(
        "--fragments {} with --local-steps {}: each fragment is exchanged every {} steps, so give "
        "a multiple of {}",
        text, steps, steps, *count));
  }
  local.streaming = Streaming{.fragments = static_cast<int>(*count), .keep = *keep};
}

constexpr base::Choice<bool> kStaleRates[] = {{false, "full"}, {true, "reduced"}};

LocalSteps stale_steps(const std::string& text) {
  const auto number = base::parse_number(text);
  if (text != "any" && (!number || *number < 0)) {
    throw BadInput(fmt::format(
        "--staleness '{}': give a number of steps, 0 or more, or any, for no bound", text));
  }
  return LocalSteps::stale(number.value_or(Asynchronous::kUnbounded));
}

LocalSteps asynchronous_steps(const LocalArguments& arguments) {
  if (arguments.steps || arguments.says_how_local()) {
    throw BadInput(
        "--staleness or --backups with --local-steps, --outer, --local-state or --fragments: "
        "workers share weights, or each shard has its own; leave one of them out");
  }
  const bool has_backups = arguments.backups.value_or(0) != 0;
  const std::string staleness = arguments.staleness.value_or("0");
  if (has_backups && staleness != "0")
    throw BadInput(
        "--backups with --staleness: a step waits for all shards but some, or gradients may be "
        "stale; leave one of them out");
  for (const auto& [option, path] :
       {std::pair{"--order", arguments.order}, {"--replay", arguments.replay}})
    if (path && path->empty())
      throw BadInput(fmt::format("{} '': give the name of a file", option));
  LocalSteps local =
      has_backups ? LocalSteps::with_backups(*arguments.backups) : stale_steps(staleness);
  if (!local.asynchronous) {
    if (arguments.says_how_asynchronous())
      throw BadInput(
          "--staleness 0 and --backups 0 are the synchronous step: leave --round, --stale-lr, "
          "--delay-compensation, --order and --replay out");
    return local;
  }
  if (arguments.round) local.stages[0].steps = *arguments.round;
  Asynchronous& rule = *local.asynchronous;
  rule.slows_if_stale = arguments.slows_if_stale.value_or(false);
  rule.delay_compensation = arguments.delay_compensation.value_or(0);
  rule.order = arguments.order.value_or("");
  rule.replay = arguments.replay.value_or("");
  static_cast<void>(to_string(local));  // looks at the numbers
  return local;
}

}  // namespace

void add_local(CLI::App& parser, LocalArguments& arguments) {
  for (const auto& [name, target] : {std::pair{"--local-steps", &arguments.steps},
                                     {"--outer", &arguments.outer},
                                     {"--fragments", &arguments.fragments},
                                     {"--staleness", &arguments.staleness},
                                     {"--order", &arguments.order},
                                     {"--replay", &arguments.replay}}) {
    parser.add_option_function<std::string>(
        name, [target = target](const std::string& text) { *target = text; });
  }
  base::add_choice(parser, "--local-state", kStates, arguments.state);
  parser.add_option("--backups", arguments.backups);
  parser.add_option("--round", arguments.round);
  base::add_choice(parser, "--stale-lr", kStaleRates, arguments.slows_if_stale);
  parser.add_option("--delay-compensation", arguments.delay_compensation);
}

LocalSteps local_steps(const LocalArguments& arguments) {
  if (arguments.staleness || arguments.backups) return asynchronous_steps(arguments);
  if (arguments.says_how_asynchronous()) {
    throw BadInput(
        "--round, --stale-lr, --delay-compensation, --order and --replay are for asynchronous "
        "steps: add --staleness or --backups");
  }
  if (!arguments.steps) {
    if (arguments.says_how_local())
      throw BadInput(
          "--outer, --local-state and --fragments say how local steps exchange: add --local-steps");
    return {};
  }
  LocalSteps local;
  local.stages = stages_of(*arguments.steps);
  if (arguments.outer) set_outer(*arguments.outer, local);
  local.state = arguments.state.value_or(LocalState::kKept);
  if (arguments.fragments) set_fragments(*arguments.fragments, local);
  static_cast<void>(to_string(local));  // looks at the numbers
  return local;
}

void check_local(const TrainArguments& arguments) {
  if (!arguments.local.enabled()) return;
  const bool shared = arguments.local.asynchronous.has_value();
  const char* const what = !shared                                     ? "--local-steps"
                           : arguments.local.asynchronous->backups > 0 ? "--backups"
                                                                       : "--staleness";
  const auto leave_out = [what](const char* option, const char* why) {
    throw BadInput(fmt::format("{} with {}: {}; leave one of them out", option, what, why));
  };
  if (arguments.sync_batchnorm)
    leave_out("--sync-batchnorm on", "batch norms would meet in every step");
  if (arguments.graphs == Switch::kOn) leave_out("--graphs on", "rounds run without CUDA graphs");
  if (arguments.noise_scale_every > 0)
    leave_out("--noise-scale", "there are no gradients of shards to compare");
  if (arguments.ema > 0) leave_out("--ema", "no average is kept between two exchanges");
  if (shared && !arguments.codec.empty() && arguments.codec != "none")
    leave_out("--codec", "what asynchronous steps send is not encoded");
  if (shared && arguments.algorithm != Algorithm::kAutomatic)
    leave_out("--algorithm", "asynchronous steps have no all-reduce");
  if (shared && !arguments.verify.empty() && arguments.local.asynchronous->replay.empty())
    throw BadInput(fmt::format(
        "--verify with {}: another order has other bits; add --replay, with the order of that run",
        what));
  if (arguments.precision == Precision::kFp16 || arguments.precision == Precision::kBf16Held)
    leave_out("--precision fp16 or bf16-held", "an exchange wants float32 weights; bf16 has them");
  if (arguments.loss_scale_used() > 0) leave_out("--loss-scale", "shards would skip other steps");
}

}  // namespace lockstep::app

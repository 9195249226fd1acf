#include "bench/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <array>

#include "base/command_line.h"
#include "base/environment.h"
#include "base/files.h"
#include "bench/measure/cores.h"
#include "control/launch/options.h"

namespace lockstep::bench {
namespace {

constexpr std::size_t kSmallestSize = std::size_t{1} << 10;
constexpr std::size_t kLargestSize = std::size_t{256} << 20;
constexpr int kMostWorkers = 256;
constexpr int kMostShards = 4096;
constexpr std::size_t kMostBytes = std::size_t{64} << 30;

// Parts of the longest run, in seconds.
constexpr double kToStart = 600;
constexpr double kWeek = 7 * 86400;     // at the most
constexpr double kToStartOnCuda = 100;  // also to search for kernels
constexpr double kTimesAsLong = 10;
constexpr double kSlowStep = 10;
constexpr double kSlowSample = 0.1;  // of all-reduces, and by bytes of all workers:
constexpr double kSlowBytes = 2e8;   // a second
constexpr int kFewSamples = 10;      // warm-up and least number of each size

[[noreturn]] void refuse(const std::string& text, const char* command) {
  throw BadInput(fmt::format("{}; see `lockstep bench {} --help`", text, command));
}

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> items;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) items.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

// "none" means the same as an empty list.
Choice choice_of(const CLI::App& parser, const char* option, const std::string& text) {
  if (parser.count(option) == 0) return std::nullopt;
  if (text == "none") return std::vector<std::string>{};
  return split_list(text);
}

struct Texts {
  std::string engines;
  std::string peers;
  std::string sizes;
  std::string systems;
  std::string rows;
};

void add_common(CLI::App& parser, CommonArguments& arguments, Texts& texts) {
  base::set_up(parser);
  base::add_number(parser, "-n,--workers", arguments.workers);
  parser.add_option("--peers", texts.peers);
  base::add_number(parser, "--rounds", arguments.rounds);
  base::add_number(parser, "--seconds", arguments.seconds);
  base::add_number(parser, "--iterations", arguments.iterations);
  parser.add_flag("--json", arguments.json);
  parser.add_option("--save", arguments.save);
}

// Not of `bench hosts`.
void add_engines_and_plot(CLI::App& parser, CommonArguments& arguments, Texts& texts) {
  parser.add_option("--engines", texts.engines);
  parser.add_option("--plot", arguments.plot);
}

void parse(CLI::App& parser, const std::vector<std::string>& arguments, const char* command) {
  base::parse_words(parser, arguments, [&](const std::string& text) { refuse(text, command); });
}

// Checked now, not after minutes of measuring.
void check_folder(const char* option, const std::string& file, const char* command) {
  const std::string folder = base::parent_path(file);
  if (!file.empty() && !base::is_directory(folder))
    refuse(fmt::format("{} {}: there is no directory {}", option, file, folder), command);
}

void check_common(const CommonArguments& arguments, const char* command) {
  if (arguments.workers < 1 || arguments.workers > kMostWorkers) {
    refuse(fmt::format("--workers {}: give a number from 1 to {}", arguments.workers, kMostWorkers),
           command);
  }
  if (arguments.rounds < 1 || arguments.rounds > 1000)
    refuse(fmt::format("--rounds {}: give a number from 1 to 1000", arguments.rounds), command);
  if (!(arguments.seconds > 0 && arguments.seconds <= 600))
    refuse(fmt::format("--seconds {}: give a number up to 600", arguments.seconds), command);
  if (arguments.iterations < 0 || arguments.iterations > 100'000) {
    refuse(fmt::format("--iterations {}: give a number from 1 to 100000", arguments.iterations),
           command);
  }
  check_folder("--plot", arguments.plot, command);
  check_folder("--save", arguments.save, command);
}

void finish_common(const CLI::App& parser, const Texts& texts, CommonArguments& arguments,
                   const char* command) {
  arguments.peers = choice_of(parser, "--peers", texts.peers);
  if (parser.count("--workers") == 0)
    arguments.workers = std::max(static_cast<int>(allowed_cores().size()), 2);
  check_common(arguments, command);
}

void check_choice(const char* option, const std::string& value,
                  const std::vector<std::string>& choices, const char* command = "step") {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  refuse(fmt::format("{} {}: choose from {}", option, value, fmt::join(choices, ", ")), command);
}

void refuse_given(const CLI::App& parser, const char* option, const char* why) {
  if (parser.count(option) > 0) refuse(fmt::format("{}: {}", option, why), "step");
}

constexpr std::int64_t kMostBucketBytes = std::int64_t{1} << 40;

std::int64_t default_batch(const StepArguments& arguments) {
  if (arguments.device == "cpu") return 32;
  if (arguments.model == "gpt") return 8;
  return arguments.model == "mlp" ? 128 : 256;
}

// The device and the model decide options that were not given.
void finish_model(const CLI::App& parser, StepArguments& parsed) {
  const bool cuda = parsed.device == "cuda";
  const bool gpt = parsed.model == "gpt";
  if (!gpt) {
    refuse_given(parser, "--gpt-size", "only --model gpt has sizes");
    refuse_given(parser, "--context", "only --model gpt has a context");
  }
  if (parser.count("--batch") == 0) parsed.batch = default_batch(parsed);
  if (parser.count("--optimizer") == 0) parsed.optimizer = cuda ? "adamw" : "sgd-momentum";
  if (parser.count("--precision") == 0) parsed.precision = cuda && gpt ? "bf16" : "float32";
  if (parser.count("--gpt-size") == 0) parsed.gpt_size = cuda ? "gpt2" : "tiny";
  if (parser.count("--context") == 0) parsed.context = cuda ? 1024 : 128;
  check_choice("--optimizer", parsed.optimizer, {"sgd", "sgd-momentum", "adam", "adamw"});
  check_choice("--precision", parsed.precision, {"float32", "bf16", "bf16-held"});
  check_choice("--gpt-size", parsed.gpt_size, {"tiny", "small", "medium", "gpt2"});
  if (!cuda && parsed.precision != "float32") {
    refuse(fmt::format("--precision {}: it is measured with --device cuda only", parsed.precision),
           "step");
  }
  if (parsed.batch < 1 || parsed.batch > (1 << 20))
    refuse(fmt::format("--batch {}: give a number from 1 to 1048576", parsed.batch), "step");
  if (parsed.context < 1 || parsed.context > (1 << 16))
    refuse(fmt::format("--context {}: give a number from 1 to 65536", parsed.context), "step");
  if (parsed.bucket_bytes < 1 || parsed.bucket_bytes > kMostBucketBytes) {
    refuse(fmt::format("--bucket-bytes {}: give a number from 1 to {}", parsed.bucket_bytes,
                       kMostBucketBytes),
           "step");
  }
}

// "4x2" is 4 workers of 2 threads each, "4" 4 workers that divide the cores.
WorkerRow parse_row(const std::string& text) {
  const std::size_t cross = std::min(text.find('x'), text.size());
  const auto workers = base::parse_number(text.substr(0, cross));
  const bool says_threads = cross < text.size();
  const auto threads =
      says_threads ? base::parse_number(text.substr(cross + 1)) : std::optional<std::int64_t>(1);
  if (!workers || !threads) {
    refuse(
        fmt::format("--rows {}: give workers and the threads of each, as in 4x2, or workers", text),
        "step");
  }
  if (*workers < 1 || *workers > kMostWorkers) {
    refuse(fmt::format("--rows {}: give a number of workers from 1 to {}", text, kMostWorkers),
           "step");
  }
  if (*threads < 1 || *threads > control::kMostThreads) {
    refuse(fmt::format("--rows {}: give a number of threads from 1 to {}", text,
                       control::kMostThreads),
           "step");
  }
  const int count = static_cast<int>(*workers);
  return {count, says_threads ? static_cast<int>(*threads) : threads_of_a_worker(count), 0};
}

// Their shards are not known yet.
void finish_rows(const CLI::App& parser, const Texts& texts, StepArguments& parsed) {
  if (parser.count("--rows") == 0) {
    parsed.rows = {{parsed.workers, threads_of_a_worker(parsed.workers), 0}};
    return;
  }
  refuse_given(parser, "--workers", "--rows says how many there are");
  if (parsed.device == "cuda") refuse_given(parser, "--rows", "with --device cuda give --workers");
  for (const std::string& text : split_list(texts.rows)) {
    const WorkerRow row = parse_row(text);
    if (std::find(parsed.rows.begin(), parsed.rows.end(), row) != parsed.rows.end())
      refuse(fmt::format("--rows {}: it is given twice", text), "step");
    parsed.rows.push_back(row);
  }
  if (parsed.rows.empty()) refuse("--rows: none given, as in 2x8,4x4", "step");
}

void check_shards(const StepArguments& parsed) {
  if (parsed.shards < parsed.workers || parsed.shards > kMostShards) {
    refuse(fmt::format("--shards {}: give a number from {}, the workers, to {}", parsed.shards,
                       parsed.workers, kMostShards),
           "step");
  }
  if (parsed.device == "cuda" && parsed.shards != parsed.workers) {
    refuse(fmt::format("--shards {}: with --device cuda there are as many as workers, {}",
                       parsed.shards, parsed.workers),
           "step");
  }
}

void finish_shards(const CLI::App& parser, StepArguments& parsed) {
  for (WorkerRow& row : parsed.rows) {
    row.shards = parser.count("--shards") == 0 ? row.workers : parsed.shards;
    check_shards(of_row(parsed, row));
  }
  parsed = of_row(parsed, parsed.rows.front());
}

// A host usually has one GPU, and the systems there have no engine to choose.
void finish_device(const CLI::App& parser, const Texts& texts, StepArguments& parsed) {
  check_choice("--device", parsed.device, {"cpu", "cuda"});
  if (parsed.device == "cpu") {
    refuse_given(parser, "--systems", "with --device cpu choose with --engines and --peers");
    return;
  }
  for (const char* option : {"--engines", "--peers"})
    refuse_given(parser, option, "with --device cuda choose with --systems");
  parsed.systems = choice_of(parser, "--systems", texts.systems);
  if (parser.count("--workers") == 0) parsed.workers = 1;
}

// Side by side all systems are in memory at once, so a large model is measured by one system at a
// time if nothing else is asked for.
void finish_turns(const CLI::App& parser, StepArguments& parsed) {
  if (parsed.device == "cuda") {
    refuse_given(parser, "--turns", "with --device cuda every system runs alone");
    parsed.turns = 1;
    return;
  }
  if (parser.count("--turns") == 0)
    parsed.turns = parsed.model == "gpt" && parsed.gpt_size != "tiny" ? 1 : 10;
  if (parsed.turns < 1 || parsed.turns > 1000)
    refuse(fmt::format("--turns {}: give a number from 1 to 1000", parsed.turns), "step");
}

void check_hosts(const HostsArguments& parsed) {
  const auto check = [](const char* option, std::int64_t value, std::int64_t least,
                        std::int64_t most) {
    if (value < least || value > most)
      refuse(fmt::format("{} {}: give a number from {} to {}", option, value, least, most),
             "hosts");
  };
  check("--hosts", parsed.hosts, 2, 16);
  check("--workers", parsed.workers, 1, 64);
  check("--mtu", parsed.mtu, 1280, 9000);
  check("--batch", parsed.batch, 1, 1 << 20);
  const std::vector<std::string> known = {"loopback", "allreduce", "mlp", "cnn"};
  for (const std::string& row : parsed.rows) {
    if (std::find(known.begin(), known.end(), row) == known.end())
      refuse(fmt::format("--rows {}: choose from {}", row, fmt::join(known, ", ")), "hosts");
  }
  if (parsed.rows.empty()) refuse("--rows: none given, as in loopback,allreduce", "hosts");
}

struct Unit {
  const char* name;
  std::size_t bytes;
};
constexpr std::array<Unit, 8> kUnits{{{"", 1},
                                      {"B", 1},
                                      {"KiB", std::size_t{1} << 10},
                                      {"MiB", std::size_t{1} << 20},
                                      {"GiB", std::size_t{1} << 30},
                                      {"kB", 1'000},
                                      {"MB", 1'000'000},
                                      {"GB", 1'000'000'000}}};

}  // namespace

AllreduceArguments parse_allreduce_arguments(const std::vector<std::string>& arguments) {
  AllreduceArguments parsed;
  parsed.seconds = 0.1;
  Texts texts;
  CLI::App parser;
  add_common(parser, parsed, texts);
  add_engines_and_plot(parser, parsed, texts);
  parser.add_option("--sizes", texts.sizes);
  parser.add_flag("--order", parsed.order);
  parse(parser, arguments, "allreduce");
  finish_common(parser, texts, parsed, "allreduce");
  parsed.engines = choice_of(parser, "--engines", texts.engines);
  for (const std::string& text : split_list(texts.sizes)) parsed.sizes.push_back(parse_size(text));
  if (parser.count("--sizes") == 0) {
    for (std::size_t size = kSmallestSize; size <= kLargestSize; size *= 2)
      parsed.sizes.push_back(size);
  }
  if (parsed.sizes.empty()) refuse("--sizes: none given, as in 1KiB,64MiB", "allreduce");
  std::sort(parsed.sizes.begin(), parsed.sizes.end());
  parsed.sizes.erase(std::unique(parsed.sizes.begin(), parsed.sizes.end()), parsed.sizes.end());
  return parsed;
}

StepArguments parse_step_arguments(const std::vector<std::string>& arguments) {
  StepArguments parsed;
  parsed.rounds = 3;
  parsed.seconds = 4;
  Texts texts;
  CLI::App parser;
  add_common(parser, parsed, texts);
  add_engines_and_plot(parser, parsed, texts);
  parser.add_option("--device", parsed.device);
  parser.add_option("--systems", texts.systems);
  parser.add_option("--model", parsed.model);
  parser.add_option("--precision", parsed.precision);
  parser.add_option("--gpt-size", parsed.gpt_size);
  base::add_number(parser, "--context", parsed.context);
  base::add_number(parser, "--bucket-bytes", parsed.bucket_bytes);
  base::add_number(parser, "--batch", parsed.batch);
  base::add_number(parser, "--shards", parsed.shards);
  parser.add_option("--optimizer", parsed.optimizer);
  parser.add_option("--rows", texts.rows);
  base::add_number(parser, "--turns", parsed.turns);
  parse(parser, arguments, "step");
  finish_common(parser, texts, parsed, "step");
  parsed.engines = choice_of(parser, "--engines", texts.engines);
  check_choice("--model", parsed.model, {"mlp", "cnn", "resnet18", "gpt"});
  finish_device(parser, texts, parsed);
  finish_model(parser, parsed);
  finish_turns(parser, parsed);
  finish_rows(parser, texts, parsed);
  finish_shards(parser, parsed);
  return parsed;
}

HostsArguments parse_hosts_arguments(const std::vector<std::string>& arguments) {
  HostsArguments parsed;
  parsed.rounds = 3;
  parsed.seconds = 2;
  parsed.workers = 2;
  Texts texts;
  texts.sizes = "16MiB";
  texts.rows = "loopback,allreduce,mlp,cnn";
  std::string loopback = "1KiB,64MiB";
  CLI::App parser;
  add_common(parser, parsed, texts);
  base::add_number(parser, "--hosts", parsed.hosts);
  parser.add_option("--rate", parsed.rate_text);
  base::add_number(parser, "--mtu", parsed.mtu);
  parser.add_option("--rows", texts.rows);
  parser.add_option("--sizes", texts.sizes);
  parser.add_option("--loopback-sizes", loopback);
  base::add_number(parser, "--batch", parsed.batch);
  parse(parser, arguments, "hosts");
  const int workers = parsed.workers;
  finish_common(parser, texts, parsed, "hosts");
  parsed.workers = workers;  // not one for each core
  parsed.rate = parse_rate(parsed.rate_text);
  parsed.rows = split_list(texts.rows);
  for (const std::string& text : split_list(texts.sizes))
    parsed.sizes.push_back(parse_size(text, "hosts"));
  for (const std::string& text : split_list(loopback))
    parsed.loopback_sizes.push_back(parse_size(text, "hosts"));
  check_hosts(parsed);
  return parsed;
}

namespace {

void check_faults(const FaultsArguments& parsed) {
  const auto check = [](const char* option, double value, double least, double most) {
    if (!(value >= least && value <= most))
      refuse(fmt::format("{} {:g}: give a number from {:g} to {:g}", option, value, least, most),
             "faults");
  };
  check("--workers", parsed.workers, 2, 64);
  check("--batch", static_cast<double>(parsed.batch), 1, 1 << 20);
  check("--kills", parsed.kills, 1, 10'000);
  check("--minutes", parsed.minutes, 0.05, 600);
  check("--turns", parsed.turns, 1, 1000);
  check_choice("--model", parsed.model, {"mlp", "cnn", "resnet18", "gpt"}, "faults");
  check_choice("--optimizer", parsed.optimizer, {"sgd", "sgd-momentum", "adam", "adamw"}, "faults");
  const std::vector<std::string> known = {"kills", "rate", "cost"};
  for (const std::string& row : parsed.rows) {
    if (std::find(known.begin(), known.end(), row) == known.end())
      refuse(fmt::format("--rows {}: choose from {}", row, fmt::join(known, ", ")), "faults");
  }
  if (parsed.rows.empty()) refuse("--rows: none given, as in kills,rate", "faults");
}

}  // namespace

FaultsArguments parse_faults_arguments(const std::vector<std::string>& arguments) {
  FaultsArguments parsed;
  parsed.rounds = 5;
  parsed.seconds = 10;
  parsed.workers = 2;
  Texts texts;
  texts.rows = "kills,rate,cost";
  CLI::App parser;
  base::set_up(parser);
  base::add_number(parser, "-n,--workers", parsed.workers);
  parser.add_option("--rows", texts.rows);
  parser.add_option("--model", parsed.model);
  base::add_number(parser, "--batch", parsed.batch);
  parser.add_option("--optimizer", parsed.optimizer);
  base::add_number(parser, "--kills", parsed.kills);
  base::add_number(parser, "--minutes", parsed.minutes);
  base::add_number(parser, "--rounds", parsed.rounds);
  base::add_number(parser, "--turns", parsed.turns);
  base::add_number(parser, "--seconds", parsed.seconds);
  base::add_number(parser, "--iterations", parsed.iterations);
  parser.add_flag("--json", parsed.json);
  parser.add_option("--save", parsed.save);
  parser.add_option("--plot", parsed.plot);
  parse(parser, arguments, "faults");
  check_common(parsed, "faults");
  parsed.rows = split_list(texts.rows);
  check_faults(parsed);
  return parsed;
}

StepArguments of_row(StepArguments arguments, const WorkerRow& row) {
  arguments.workers = row.workers;
  arguments.threads = row.threads;
  arguments.shards = row.shards;
  return arguments;
}

std::chrono::seconds longest_run(const AllreduceArguments& arguments) {
  double seconds = kToStart;
  for (const std::size_t bytes : arguments.sizes) {
    const double sample = kSlowSample + static_cast<double>(bytes) * arguments.workers / kSlowBytes;
    const int samples = std::max(arguments.iterations, kFewSamples);
    seconds += samples * sample + (arguments.iterations > 0 ? 0 : kTimesAsLong * arguments.seconds);
  }
  return std::chrono::seconds(static_cast<std::int64_t>(std::min(seconds, kWeek)));
}

std::chrono::seconds longest_run(const StepArguments& arguments) {
  double seconds = kToStart + kSlowStep * arguments.iterations;
  if (arguments.iterations == 0) {
    seconds = arguments.device == "cuda" ? kToStartOnCuda : kToStart;
    seconds += kTimesAsLong * arguments.seconds;
  }
  return std::chrono::seconds(static_cast<std::int64_t>(std::min(seconds, kWeek)));
}

std::chrono::seconds longest_run(const HostsArguments& arguments) {
  double sample = kSlowStep;  // a step, or an all-reduce over a slow line
  for (const std::size_t bytes : arguments.sizes) {
    const double bits = 8.0 * static_cast<double>(bytes) * arguments.workers * arguments.hosts;
    sample = std::max(sample, 10 * bits / arguments.rate);
  }
  const int samples = std::max(arguments.iterations, kFewSamples);
  const double seconds = kToStart + kTimesAsLong * arguments.seconds + samples * sample;
  return std::chrono::seconds(static_cast<std::int64_t>(std::min(seconds, kWeek)));
}

double parse_rate(const std::string& text) {
  constexpr double kMostRate = 1e12;
  constexpr double kLeastRate = 1e6;  // slower ones measure patience
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto number = base::parse_number(text.substr(0, digits));
  const std::string unit = text.substr(digits);
  const double factor = unit == "gbit" ? 1e9 : unit == "mbit" ? 1e6 : unit == "kbit" ? 1e3 : 0;
  const double rate = number ? static_cast<double>(*number) * factor : 0;
  if (rate < kLeastRate || rate > kMostRate)
    refuse(fmt::format("--rate {}: give 1mbit to 1000gbit, as in 1gbit", text), "hosts");
  return rate;
}

std::size_t parse_size(const std::string& text, const char* command) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto number = base::parse_number(text.substr(0, digits));
  const std::string name = text.substr(digits);
  const auto* unit = std::find_if(kUnits.begin(), kUnits.end(),
                                  [&](const Unit& known) { return name == known.name; });
  if (!number || unit == kUnits.end()) {
    refuse(fmt::format("--sizes {}: give a number with KiB, MiB or GiB, or bytes", text), command);
  }
  if (*number < 1 || static_cast<std::size_t>(*number) > kMostBytes / unit->bytes)
    refuse(fmt::format("--sizes {}: give 4 bytes to 64 GiB", text), command);
  const std::size_t bytes = static_cast<std::size_t>(*number) * unit->bytes;
  if (bytes % sizeof(float) != 0) {
    refuse(fmt::format("--sizes {}: not a multiple of 4 bytes, the size of a float", text),
           command);
  }
  return bytes;
}

std::string spoken_size(std::size_t bytes) {
  for (const std::size_t i : {4, 3, 2}) {
    if (bytes % kUnits[i].bytes == 0)
      return fmt::format("{} {}", bytes / kUnits[i].bytes, kUnits[i].name);
  }
  return fmt::format("{} B", bytes);
}

}  // namespace lockstep::bench

// The options of `lockstep bench`.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::bench {

// Names that were asked for. Nothing: everything that can be found.
using Choice = std::optional<std::vector<std::string>>;

// The options of all benchmarks.
struct CommonArguments {
  int workers = 0;  // 0: one per core, at least 2
  Choice engines;
  Choice peers;
  int rounds = 5;
  double seconds = 0;
  int iterations = 0;  // samples of each run; 0: as `seconds` allows
  bool json = false;
  std::string save;  // a file that also gets the JSON; empty: none
  std::string plot;  // a file; empty: none
};

struct AllreduceArguments : CommonArguments {
  std::vector<std::size_t> sizes;  // bytes
  bool order = false;              // also measure what the order of the tree costs
};

// How many workers a row of `bench step` has, of how many threads each, and how many shards they
// host together.
struct WorkerRow {
  int workers = 0;
  int threads = 0;
  int shards = 0;  // at least as many as workers

  bool operator==(const WorkerRow&) const = default;
};

// On cuda the default is one worker, and there are other systems: `systems` chooses among them.
// `engines` and `peers` are not used there.
struct StepArguments : CommonArguments {
  std::string device = "cpu";  // or cuda
  std::string model = "mlp";
  std::int64_t batch = 0;  // of each shard; if not given, the device and the model decide
  int shards = 0;          // 0: as many as workers
  int threads = 0;         // of each worker; 0: its part of the cores
  std::string optimizer;   // default sgd-momentum; on cuda adamw
  std::string precision;   // float32, bf16 (autocast), bf16-held; default float32, gpt on cuda bf16
  std::string gpt_size;    // default tiny; on cuda gpt2
  std::int64_t context = 0;
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  // of Lockstep and of PyTorch's DDP
  Choice systems;
  int turns = 0;  // of each system in a round; 1: systems run one after the other, each alone
  std::vector<WorkerRow> rows;  // measured in one run, at least one; `workers`, `threads` and
                                // `shards` are those of the first
};

// `workers` are those of each host. `engines` and `plot` are not used.
struct HostsArguments : CommonArguments {
  int hosts = 2;
  std::string rate_text = "1gbit";
  double rate = 1e9;  // of each host each way, in bits a second
  int mtu = 1500;
  std::vector<std::string> rows;            // of loopback, allreduce, mlp, cnn
  std::vector<std::size_t> sizes;           // bytes, of all-reduces between the hosts
  std::vector<std::size_t> loopback_sizes;  // the same over the loopback
  std::int64_t batch = 128;                 // of each worker
};

// `engines` and `peers` are not used.
struct FaultsArguments : CommonArguments {
  std::vector<std::string> rows;  // of kills, rate, cost
  std::string model = "mlp";
  std::int64_t batch = 32;  // of each worker
  std::string optimizer = "sgd-momentum";
  int kills = 20;       // of the row kills
  double minutes = 10;  // of the row rate, with kills; as many without
  int turns = 10;       // of the row cost
};

// The same, for one of the rows.
StepArguments of_row(StepArguments arguments, const WorkerRow& row);

// They throw BadInput, in one line, for anything that they do not understand or that cannot work.
AllreduceArguments parse_allreduce_arguments(const std::vector<std::string>& arguments);
StepArguments parse_step_arguments(const std::vector<std::string>& arguments);
HostsArguments parse_hosts_arguments(const std::vector<std::string>& arguments);
FaultsArguments parse_faults_arguments(const std::vector<std::string>& arguments);

// "1gbit" becomes 1e9: a whole number with kbit, mbit or gbit, as `tc` reads it. Throws BadInput.
double parse_rate(const std::string& text);

// "64KiB" becomes 65536. Units are B, KiB, MiB, GiB, and kB, MB, GB for powers of 1000. Throws
// BadInput for anything else, and for a size that is not a multiple of 4 bytes, the size of a
// float.
std::size_t parse_size(const std::string& text, const char* command = "allreduce");
std::string spoken_size(std::size_t bytes);

// The longest time that one turn of a system may take: time to start and warm up, and ten times the
// time that was asked for. With --iterations that time is not known; it is guessed from a slow
// sample. The limit is for systems that hang. Every duration that the options allow is below it, up
// to a week.
std::chrono::seconds longest_run(const AllreduceArguments& arguments);
std::chrono::seconds longest_run(const StepArguments& arguments);
std::chrono::seconds longest_run(const HostsArguments& arguments);

// help.cpp.
extern const char* const kBenchHelp;
extern const char* const kAllreduceHelp;
extern const char* const kStepHelp;
extern const char* const kHostsHelp;
extern const char* const kFaultsHelp;

}  // namespace lockstep::bench

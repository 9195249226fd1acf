// The options of `lockstep bench`.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::bench {

// Names that were asked for, or nothing: everything that can be found.
using Choice = std::optional<std::vector<std::string>>;

// What both benchmarks take.
struct CommonArguments {
  int workers = 0;  // 0: one for each core, and at least 2
  Choice engines;
  Choice peers;
  int rounds = 5;
  double seconds = 0;
  int iterations = 0;  // samples of each run; 0: as `seconds` allows
  bool json = false;
  std::string save;  // a file for the JSON, too; empty: none
  std::string plot;  // a file; empty: none
};

struct AllreduceArguments : CommonArguments {
  std::vector<std::size_t> sizes;  // bytes
  bool order = false;              // also what the order of the tree costs
};

// On cuda there is one worker by default, and other systems: `systems` chooses among them, `engines` and
// `peers` are not used.
struct StepArguments : CommonArguments {
  std::string device = "cpu";  // or cuda
  std::string model = "mlp";
  std::int64_t batch = 0;  // of each shard; by the device and the model if it is not given
  int shards = 0;          // 0: as many as workers
  std::string optimizer;   // sgd-momentum; adamw on cuda
  std::string precision;   // float32, bf16: autocast, or bf16-held; float32, but for gpt on cuda
  std::string gpt_size;    // tiny; gpt2 on cuda
  std::int64_t context = 0;
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  // ours, and PyTorch's DDP's
  Choice systems;
};

// BadInput, in one line, for anything that cannot be understood or cannot work.
AllreduceArguments parse_allreduce_arguments(const std::vector<std::string>& arguments);
StepArguments parse_step_arguments(const std::vector<std::string>& arguments);

// "64KiB" as 65536; B, KiB, MiB, GiB, and kB, MB, GB by thousands. BadInput for anything else, and for a
// size that is no multiple of 4 bytes, the size of a float.
std::size_t parse_size(const std::string& text);
std::string spoken_size(std::size_t bytes);

// The longest that one turn of a system may take: to start and warm up, and then ten times what was asked for. What
// was asked for as --iterations takes as long as it takes: a slow one counts, by guess. With this limit every duration that
// the options allow can be measured, up to a week; it is for systems that hang.
std::chrono::seconds longest_run(const AllreduceArguments& arguments);
std::chrono::seconds longest_run(const StepArguments& arguments);

const char* bench_help() noexcept;
const char* allreduce_help() noexcept;
const char* step_help() noexcept;

}  // namespace lockstep::bench

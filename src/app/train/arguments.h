// The options of `lockstep train`, without LibTorch: the command checks them before it starts
// anything, and every worker reads them again.
#pragma once

#include <lockstep/comm.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::app {

// Of a choice of a job: the checkpoint's that it goes on from, else what is best here.
inline constexpr const char* kOpen = "auto";

inline constexpr const char* kNoCheckpoint = "none";

inline constexpr int kMostThreads = 4096;

struct TrainArguments {
  // What is trained, on what.
  std::string model = "cnn";
  std::string gpt_size = "tiny";
  std::int64_t vocabulary = 0;
  double dropout = -1;
  std::string data = "fashion-mnist";
  std::int64_t context = 128;

  // How.
  std::int64_t global_batch = 128;
  std::string buffers = "first-shard";
  int shards = 0;      // 0: by --accumulate, else the default
  int accumulate = 0;  // 0: not asked for
  std::int64_t epochs = 0;
  std::int64_t steps = 0;
  std::string optimizer = "sgd";
  std::optional<double> lr;
  std::optional<double> momentum;
  std::optional<double> weight_decay;
  double clip_norm = 0;
  std::int64_t scale_lr_from = 0;  // the batch that lr was chosen for; 0: lr as it is
  std::int64_t warmup_steps = 0;
  std::string decay = "constant";
  std::uint64_t seed = 0;
  std::string onednn = kOpen;  // these three: on or off
  std::string flush_denormal = kOpen;
  std::string deterministic = kOpen;
  int threads = 0;                // of each worker; 0: open
  std::string precision = kOpen;  // float32, bf16 or bf16-held

  // On what.
  std::string device;  // cpu or cuda; empty: open
  int workers = 0;     // 0: open, one for each core or GPU
  bool share_gpus = false;
  std::string graphs = kOpen;  // CUDA graphs: on or off
  std::string engine;
  std::string algorithm = "automatic";
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  int loader_threads = 1;

  // What is kept and shown.
  std::string checkpoint = kOpen;  // its directory, or kNoCheckpoint
  std::int64_t checkpoint_every = 0;
  bool resume = false;
  std::string resumed;  // the directory that --resume itself has named
  bool overwrite = false;
  bool verify_data = false;
  std::string report;
  std::string hashes;
  std::string verify;
  std::int64_t until = -1;  // a step; −1: the log's last
  std::string check_divergence = "on";
  bool compare_alone = false;
  bool quiet = false;

  double learning_rate() const;  // lr, or the optimizer's default
};

// BadInput, in one line, for anything that cannot be understood or cannot work.
TrainArguments parse_train_arguments(const std::vector<std::string>& arguments);

// One for each of so many cores or GPUs, or as many as there are shards.
int workers_for_this_host(const TrainArguments& arguments, int places);
int cores_of_this_host();

// "cpu" or "cuda": by --device, else by the variables and the engine, as join() would choose.
std::string device_asked_for(const TrainArguments& arguments);

// BadInput when these cannot be meant together: devices and engines, shards and workers. For arguments of which something
// was open when they were parsed.
void check_together(const TrainArguments& arguments);

Algorithm algorithm_named(const std::string& name);

const char* train_help() noexcept;

}  // namespace lockstep::app

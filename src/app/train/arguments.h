// The options of `lockstep train`, without LibTorch: the command checks them before it starts anything, and every
// worker reads them again.
//
// Only the parser reads the words of a choice. After it a choice is an enum, and name() gives the word for a
// checkpoint, a report or a worker's options. Defaults are those of TrainArguments.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/schedule.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/train/local_arguments.h"
#include "control/launch/options.h"

namespace lockstep::app {

enum class Model : std::uint8_t { kMlp, kCnn, kResnet18, kGpt };
enum class GptSize : std::uint8_t { kTiny, kSmall, kMedium, kGpt2 };
enum class OptimizerKind : std::uint8_t { kSgd, kAdam, kAdamW, kRmsProp, kAdagrad, kLars, kLamb };
enum class BufferRule : std::uint8_t { kFirstShard, kMean };

// kOpen: as in the checkpoint that the job goes on from, or else what is best here.
enum class Switch : std::uint8_t { kOpen, kOn, kOff };
enum class Precision : std::uint8_t { kOpen, kFloat32, kBf16, kBf16Held, kFp16 };
enum class Decay : std::uint8_t { kConstant, kCosine, kLinear };

const char* name(Model model);
const char* name(GptSize size);
const char* name(OptimizerKind optimizer);
const char* name(Switch choice);
const char* name(Precision precision);
const char* name(Decay decay);
const char* name(Scaling rule);

// The choice that a checkpoint names; kOpen if it names none.
Switch switch_named(const std::string& word);
Precision precision_named(const std::string& word);

// For options of the optimizer that were not given.
struct OptimizerDefaults {
  double lr = 0;
  double momentum = 0;
  double weight_decay = 0;
};
// PyTorch's, except for SGD; for LARS and LAMB, which it does not have, those of lockstep::optim.
constexpr OptimizerDefaults defaults_of(OptimizerKind optimizer) {
  switch (optimizer) {
    case OptimizerKind::kSgd:
      return {.lr = 0.05, .momentum = 0.9, .weight_decay = 5e-4};
    case OptimizerKind::kAdam:
      return {.lr = 1e-3};
    case OptimizerKind::kAdamW:  // it has no momentum, but its checkpoints name this number
      return {.lr = 1e-3, .momentum = 0.9, .weight_decay = 1e-2};
    case OptimizerKind::kLars:
      return {.lr = 1, .momentum = 0.9, .weight_decay = 5e-4};
    case OptimizerKind::kLamb:
      return {.lr = 1e-3, .weight_decay = 1e-2};
    case OptimizerKind::kRmsProp:
    case OptimizerKind::kAdagrad:
      break;
  }
  return {.lr = 1e-2};
}

inline constexpr const char* kNoCheckpoint = "none";      // the word of --checkpoint
inline constexpr std::int64_t kDefaultEpochs = 3;         // without --epochs and --steps
inline constexpr const char* kDefaultScaledFrom = "256";  // of --scale-lr without a batch
inline constexpr const char* kDefaultNoiseSteps = "16";   // of --noise-scale without a number

struct TrainArguments {
  // What is trained, on what.
  Model model = Model::kCnn;
  GptSize gpt_size = GptSize::kTiny;
  std::int64_t vocabulary = 0;
  double dropout = -1;
  std::string data = "fashion-mnist";
  std::int64_t context = 128;

  // How.
  std::int64_t global_batch = 128;
  BufferRule buffers = BufferRule::kFirstShard;
  bool sync_batchnorm = false;
  int shards = 0;      // 0: by --accumulate, else the default
  int accumulate = 0;  // 0: not asked for
  std::int64_t epochs = 0;
  std::int64_t steps = 0;
  OptimizerKind optimizer = OptimizerKind::kSgd;
  std::optional<double> lr;
  std::optional<double> momentum;
  std::optional<double> weight_decay;
  double clip_norm = 0;
  double clip_value = 0;
  std::int64_t noise_scale_every = 0;  // steps; 0: it is not measured
  double ema = 0;                      // the decay of an average of weights; 0: none is kept
  std::int64_t scale_lr_from = 0;      // the batch that lr was chosen for; 0: lr is not scaled
  Scaling scale_rule = Scaling::kLinear;
  std::int64_t warmup_steps = 0;
  Decay decay = Decay::kConstant;
  std::uint64_t seed = 0;
  LocalArguments local_given;
  LocalSteps local;  // what they mean
  Switch onednn = Switch::kOpen;
  Switch flush_denormal = Switch::kOpen;
  Switch deterministic = Switch::kOpen;
  int threads = 0;  // of each worker; 0: open
  Precision precision = Precision::kOpen;
  std::optional<double> loss_scale;  // at first; 0: none

  // On what.
  std::optional<DeviceKind> device;  // nothing: open
  int workers = 0;                   // on all hosts; 0: open, one for each core or GPU
  // MIN:MAX: how many there may be while the job runs. `workers` is then the number at the start.
  std::optional<control::WorkersAsked> workers_range;
  control::NodeOptions nodes;  // several hosts
  control::HostOptions hosts;  // likewise, started from here
  int host_workers = 0;        // on this one of several hosts
  std::optional<Wire> wire;    // nothing: open
  control::Bind bind = control::Bind::kAuto;
  // As `lockstep run`: workers that die are replaced.
  struct Elastic {
    std::optional<int> min_workers;
    std::optional<int> max_restarts;
    std::optional<double> step_timeout_s;
    std::optional<int> timeout_s;
    std::string faults;
    std::optional<std::int64_t> fault_seed;
  };
  Elastic elastic;
  bool share_gpus = false;
  Switch graphs = Switch::kOpen;  // CUDA graphs
  std::string engine;             // by name: which there are depends on the build; empty: open
  std::string codec = "none";     // as codec::parse() reads it
  Algorithm algorithm = Algorithm::kAutomatic;
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  int loader_threads = 1;

  // What is kept and shown.
  std::optional<std::string> checkpoint;  // its directory; empty: none is kept; nothing: open
  std::int64_t checkpoint_every = 0;      // steps; 0: by time, or at the end of every epoch
  double checkpoint_every_s = 0;          // seconds; 0: not by time
  int keep_checkpoints = 2;
  bool resume = false;
  std::string resumed;  // the directory that --resume itself has named
  bool overwrite = false;
  bool verify_data = false;
  std::string report;
  std::string hashes;
  std::string verify;
  std::int64_t until = -1;  // a step; −1: the log's last
  bool check_divergence = true;
  bool compare_alone = false;
  bool quiet = false;

  // What was given, or the optimizer's default.
  double learning_rate() const { return lr.value_or(defaults_of(optimizer).lr); }
  double momentum_used() const { return momentum.value_or(defaults_of(optimizer).momentum); }
  double weight_decay_used() const {
    return weight_decay.value_or(defaults_of(optimizer).weight_decay);
  }
  // As PyTorch's for float16, and none for other types, which have the range of float32.
  double loss_scale_used() const {
    return loss_scale.value_or(precision == Precision::kFp16 ? 65536 : 0);
  }
  bool several_hosts() const { return !control::one_host(nodes); }
  bool on(DeviceKind kind) const { return device == kind; }
};

// BadInput, in one line, for anything that cannot be understood or cannot work.
TrainArguments parse_train_arguments(const std::vector<std::string>& arguments);

// One worker for each of so many cores or GPUs, but not more than shards, and so that the batch can be divided.
int workers_for_this_host(const TrainArguments& arguments, int places);
int cores_of_this_host();

// The device of --device, or else the one that join() would choose by the variables and the engine.
DeviceKind device_asked_for(const TrainArguments& arguments);

// BadInput if options contradict each other: devices and engines, shards and workers. Call it again when choices that
// were open at parsing are made.
void check_together(const TrainArguments& arguments);

// The text of `lockstep train --help`.
const char* train_help();

}  // namespace lockstep::app

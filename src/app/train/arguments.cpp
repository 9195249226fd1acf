#include "app/train/arguments.h"

#include <fmt/format.h>
#include <lockstep/codec.h>
#include <lockstep/errors.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "app/hosts/arguments.h"
#include "app/train/path_arguments.h"
#include "base/command_line.h"
#include "base/environment.h"
#include "base/files.h"
#include "control/device_choice.h"
#include "control/launch/options.h"
#include "formats/checkpoint_file.h"
#include "plan/position.h"

namespace lockstep::app {

namespace {

constexpr const char* kHelp =
    R"(Trains a model on several workers, of this host or of several, with no C++ to write.

  lockstep train [options]

What is trained
  --model M            mlp, cnn, resnet18 or gpt (default: cnn)
  --data D             fashion-mnist, synthetic[:SAMPLES], a directory of IDX or CIFAR-10 files, a .csv, or a
                       text file for gpt, or its tokens: a .bin file, or a directory with train.bin and val.bin
                       (default: fashion-mnist)
  --gpt-size S         tiny, small, medium or gpt2 (default: tiny)
  --context C          characters of one sample of a text, or tokens (default: 128)
  --vocabulary V       gpt: tokens, at least the text's (default: the text's); token files without a header need it
  --dropout P          0 to 1 (default: the model's)
How
  --epochs E           passes over the data (default: 3), or
  --steps T            steps in all
  --global-batch B     samples of a step over all workers (default: 128)
  --shards S           slices of every global batch; any number of workers up to S gives the same result
                       (default: 8, or the largest divisor of the global batch below that)
  --accumulate K       in place of --shards: K for each worker that the job starts with
  --buffers R          of BatchNorm, after a step: first-shard, or mean over shards (default: first-shard)
  --sync-batchnorm S   on: BatchNorm's statistics are those of the global batch, not of a shard (default: off)
  --optimizer O        sgd (with momentum 0.9), adam, adamw, rmsprop, adagrad, or for large batches lars or lamb
                       (default: sgd)
  --lr R               learning rate (default: sgd 0.05, adam, adamw and lamb 0.001, rmsprop and adagrad 0.01, lars 1)
  --momentum M         sgd and lars (default: 0.9) and rmsprop (default: 0)
  --weight-decay W     (default: sgd and lars 0.0005, adamw and lamb 0.01, others 0)
  --clip-norm C        scale gradients down so that their norm is at most C (default: 0, never)
  --clip-value C       limit each element of a gradient to -C ... C (default: 0, never)
  --ema D              keep an average of the weights, which decays by D each step, in the checkpoint (default: 0, none)
  --noise-scale [N]    estimate the critical batch size, from the gradients of shards in every Nth step (16 if not said)
  --scale-lr [B0]      --lr was chosen for a batch of B0 (256 if not said): scale it to this one
  --scale-rule R       linear in the batch, as for sgd, or square-root, as for adamw (default: linear)
  --warmup T           steps over which the learning rate climbs (default: 0)
  --decay D            constant, or cosine or linear to 0 over the job (default: constant)
  --seed N             of weights, order and dropout (default: 0)
  --local-steps H      local SGD: each shard takes H steps with weights of its own, then all exchange weights, not
                       gradients, so the result is another one; or H,FROM:H, as in 1,1000:16 (default: none)
  --outer U            what such an exchange does: mean of the weights; nesterov[:RATE:MOMENTUM], which is DiLoCo (0.7
                       and 0.9); or sgd:RATE[:MOMENTUM] (default: mean)
  --local-state S      of a shard's optimizer, after an exchange: kept, averaged or reset (default: kept)
  --fragments P[:A]    the model is exchanged in P fragments in turn, each every H steps, while shards train; so it comes
                       H / P steps late, and a shard keeps the part A of its own (default: whole, not late; A is 0.5)
  --staleness K        asynchronous: workers share weights, and each applies the gradient of a shard by itself. None is
                       begun before all that are more than K steps behind are applied; any: no bound. So nobody waits
                       for a slow worker, and the result depends on who was faster; 0 is the synchronous step
  --backups B          synchronous, but a step waits for all shards but B: the first to be ready count, the others are
                       dropped, and who is slow is left out (default: 0)
  --round H            with --staleness or --backups: steps between two meetings of all workers (default: 50)
  --stale-lr L         full, or reduced: less of the learning rate for gradients that many others have overtaken
                       (default: full)
  --delay-compensation L   correct stale gradients by L times their square times what weights have changed (default: 0)
  --order FILE         write the order in which gradients were applied
  --replay FILE        keep the order of such a file: the same bits, on any number of workers
The arithmetic: it decides bits, so it is part of the job, and a job that goes on keeps that of its checkpoint
  --threads T          threads of each worker (default: 1)
  --onednn X           on, off, or auto: off on ARM, where it is slow (default: auto)
  --flush-denormal X   on or off: numbers below 1.2e-38 are zero (default: off)
  --deterministic X    on or off: refuse operators that may give other bits the next time (default: on)
  --precision P        float32; bf16 or fp16: matrix products in bfloat16 or float16, weights in float32; or bf16-held:
                       weights of linear layers and convolutions in bfloat16, too, beside float32 masters
                       (default: float32)
  --loss-scale S       multiply the loss by S at first, and skip steps whose gradients overflow; 0: do not
                       (default: 65536 with fp16, else 0)
On what
  --device D           cpu, or cuda: one GPU for each worker (default: cpu)
  -n, --workers N      at most one for each shard (default: one for each core, or for each GPU); or MIN:MAX, as in 2:8:
                       the default within these limits. `lockstep resize` then changes the number, and a worker that dies
                       is replaced
  --max-restarts R     a worker that a signal kills is replaced, R times within 10 minutes, and the others go on; on one
                       host's CPUs (10 if only --min-workers is given)
  --min-workers M      fewer than M workers end the job (1 if only --max-restarts is given)
  --step-timeout S     seconds; a worker that the others wait for in vain is then replaced, too (default: 30, or 10 times
                       the median step if that is longer)
  --timeout S          seconds that joining, and any later operation between workers, may take (default: 300)
  --faults LIST        faults on purpose, for tests: kill=1/min,slow=200ms:0.5/min, or kill@5:1:update. The guide
                       docs/guide/faults.md has all kinds and points
  --fault-seed N       of faults at random: the same gives the same sequence (default: 0)
  --share-gpus         more workers than GPUs, which take turns: for tests, slow
  --graphs X           on, off or auto: a step on a GPU as a CUDA graph (default: auto)
  --engine E           what moves bytes between workers; see `lockstep doctor`
  --bind B             auto: workers to NUMA nodes, if there are several; cores: each to cores of its own; none
                       (default: auto)
  --wire W             auto: messages between hosts carry keyed tags, so that a changed one is noticed; tagged: on one
                       host, too; plain: none, for a network that you trust (default: auto)
  --codec C            gradients in fewer bytes between workers, and with fewer bits: bf16 or fp16 (half of the bytes),
                       int8 (a quarter), one-bit (1/30), top-k[:FRACTION] (0.01: 1/68), power-sgd[:RANK[:FROM]]
                       (matrices as factors of RANK columns, from step FROM on: 1:1000) or none. The result differs,
                       and is still the same on any number of workers. All but bf16, fp16 and int8:plain keep what
                       each shard lost for its next step: a memory of the model for each shard, and a worker that
                       dies costs the steps since the checkpoint (default: none)
  --algorithm A        automatic, direct, two-levels, halving-doubling, ring, tree or native
  --bucket-bytes N     gradients that travel together (default: 26214400)
  --loader-threads T   threads of each worker that read ahead (default: 1)
On several hosts, started from here by ssh. The data and `lockstep` are at the same path on every host
  --hosts LIST         HOST:WORKERS,HOST:WORKERS …; `ssh HOST true` works without a password. The first host shows the
                       progress and keeps checkpoint and report
  --ssh COMMAND        another remote shell (default: $LOCKSTEP_SSH, else ssh -T -o BatchMode=yes …)
  --remote-lockstep P  the path of `lockstep` on every host (default: as here)
On several hosts, without ssh: the same command on each of them, but for --node-rank and --workers
  --nodes H            how many hosts; --workers is then of this host, and must be given
  --node-rank I        which of them this is, 0 to H-1. Node 0 shows the progress and keeps checkpoint and report
  --rendezvous A       HOST:PORT where they meet: the host of node 0 as the others reach it, and a free port there
  --secret-file F      a file that only you can read, with the same content on every host
  --join HOST:PORT     in place of these three: one host more for an elastic job that runs, at its
                       --rendezvous. It needs --workers and --secret-file; all else is as on node 0
What is kept and shown
  --checkpoint DIR     keep DIR/checkpoint-STEP.safetensors, written after every epoch and at the end, while training
                       goes on; none: keep nothing (default: a new directory lockstep-runs/MODEL-DATE-TIME)
  --checkpoint-every T steps between checkpoints, or a time such as 30s, 5min or 1h, in place of every epoch
  --keep-checkpoints K the last K of them are kept; a damaged one is skipped for the one before (default: 2)
  --resume [DIR]       go on from the checkpoint in DIR; without DIR, from that in --checkpoint's, if there is one
  --overwrite          begin with step 0 where --checkpoint names a directory with a checkpoint, and replace that
  --verify-data        compare all training data with the checkpoint's and between workers (default: 64 samples of it)
  --report FILE        write the results as JSON
  --hashes FILE        write the hashes of all weights after every step, one line of JSON each
  --verify FILE        run the steps of such a file again, from the beginning or with --resume from a checkpoint, and
                       name the first step and parameter whose bits differ; writes no checkpoint
  --until STEP         with --verify: the last step to run again (default: the file's last)
  --check-divergence X on, or off: do not look for bits that changed on their own (default: on)
  --compare-alone      first measure one worker alone, for the speed-up
  -q, --quiet          no progress, only the results

Ctrl-C, SIGTERM, SIGQUIT or a closed terminal end the step, write a checkpoint unless none is kept, and exit.

Exit codes: 0 all steps are done; 1 training failed, or the checkpoint is another job's; 2 an option, a file or the data
does not fit, or the loss is not finite; 75 one worker was told to stop, and all did (go on with --resume); 128 + the
signal that the command got, or that killed a worker.

Examples:
  lockstep train --model cnn --epochs 3
  lockstep train --model gpt --data book.txt --optimizer adamw --steps 500 --checkpoint run
  lockstep train --model gpt --data book.txt --optimizer adamw --steps 900 --resume run
  lockstep train --model gpt --gpt-size gpt2 --context 1024 --data book.txt --optimizer adamw --device cuda --precision bf16
  lockstep train --model cnn --hosts node0:4,node1:4
  lockstep train --model cnn --steps 100 --hashes log; lockstep train --model cnn --steps 100 --verify log --workers 1
)";

constexpr base::Choice<Model> kModels[] = {{Model::kMlp, "mlp"},
                                           {Model::kCnn, "cnn"},
                                           {Model::kResnet18, "resnet18"},
                                           {Model::kGpt, "gpt"}};
constexpr base::Choice<GptSize> kGptSizes[] = {{GptSize::kTiny, "tiny"},
                                               {GptSize::kSmall, "small"},
                                               {GptSize::kMedium, "medium"},
                                               {GptSize::kGpt2, "gpt2"}};
constexpr base::Choice<OptimizerKind> kOptimizers[] = {
    {OptimizerKind::kSgd, "sgd"},         {OptimizerKind::kAdam, "adam"},
    {OptimizerKind::kAdamW, "adamw"},     {OptimizerKind::kRmsProp, "rmsprop"},
    {OptimizerKind::kAdagrad, "adagrad"}, {OptimizerKind::kLars, "lars"},
    {OptimizerKind::kLamb, "lamb"}};
constexpr base::Choice<BufferRule> kBufferRules[] = {{BufferRule::kFirstShard, "first-shard"},
                                                     {BufferRule::kMean, "mean"}};
constexpr base::Choice<Decay> kDecays[] = {
    {Decay::kConstant, "constant"}, {Decay::kCosine, "cosine"}, {Decay::kLinear, "linear"}};
constexpr base::Choice<Scaling> kScalings[] = {{Scaling::kLinear, "linear"},
                                               {Scaling::kSquareRoot, "square-root"}};
constexpr base::Choice<Switch> kSwitches[] = {{Switch::kOn, "on"}, {Switch::kOff, "off"}};
constexpr base::Choice<Switch> kOpenSwitches[] = {
    {Switch::kOpen, "auto"}, {Switch::kOn, "on"}, {Switch::kOff, "off"}};
constexpr base::Choice<bool> kOnOrOff[] = {{true, "on"}, {false, "off"}};
constexpr base::Choice<Precision> kPrecisions[] = {{Precision::kOpen, "auto"},
                                                   {Precision::kFloat32, "float32"},
                                                   {Precision::kBf16, "bf16"},
                                                   {Precision::kBf16Held, "bf16-held"},
                                                   {Precision::kFp16, "fp16"}};
constexpr base::Choice<Algorithm> kAlgorithms[] = {
    {Algorithm::kAutomatic, "automatic"},
    {Algorithm::kDirect, "direct"},
    {Algorithm::kHalvingDoubling, "halving-doubling"},
    {Algorithm::kRing, "ring"},
    {Algorithm::kTree, "tree"},
    {Algorithm::kNative, "native"},
    {Algorithm::kTwoLevels, "two-levels"}};

// The value of --checkpoint if the directory is still to be chosen.
constexpr const char* kOpenCheckpoint = "auto";

// The value of --resume without a directory. No user can give it: the parser takes it for an option.
constexpr const char* kWhereItIs = "--checkpoint";

[[noreturn]] void refuse(const std::string& text) {
  throw BadInput(text + "; see `lockstep train --help`");
}

template <typename Number>
void check_range(const char* option, Number value, Number least, Number most) {
  if (value >= least && value <= most) return;
  refuse(fmt::format("{} {}: give a number from {} to {}", option, value, least, most));
}

void add_file(CLI::App& parser, const std::string& name, std::string& path) {
  parser.add_option_function<std::string>(name, [name, &path](const std::string& given) {
    if (given.empty()) refuse(name + " wants a file");
    path = given;
  });
}

struct TimeUnit {
  std::string_view name;
  double seconds;
};
constexpr TimeUnit kTimeUnits[] = {{"min", 60}, {"h", 3600}, {"s", 1}};

// A number of steps, or a time with its unit.
void set_interval(const std::string& given, TrainArguments& arguments) {
  arguments.checkpoint_every = 0;
  arguments.checkpoint_every_s = 0;
  constexpr double kMostSeconds = 1e9;
  for (const auto& [unit, seconds] : kTimeUnits) {
    if (!given.ends_with(unit)) continue;
    const auto time = base::parse_real(given.substr(0, given.size() - unit.size()));
    if (!time || *time <= 0 || *time * seconds > kMostSeconds) break;
    arguments.checkpoint_every_s = *time * seconds;
    return;
  }
  const auto steps = base::number_from<std::int64_t>(given);
  if (!steps) {
    refuse(fmt::format(
        "--checkpoint-every {}: give a number of steps, such as 500, or a time, such as 30s, 5min "
        "or 1h",
        given));
  }
  arguments.checkpoint_every = *steps;
}

void add_checkpoint(CLI::App& parser, TrainArguments& arguments) {
  parser.add_option_function<std::string>("--checkpoint", [&](const std::string& given) {
    if (given.empty()) refuse("--checkpoint wants a directory, or none");
    arguments.checkpoint = given == kNoCheckpoint ? "" : given;
    if (given == kOpenCheckpoint) arguments.checkpoint.reset();
  });
  parser.add_option_function<std::string>(
      "--checkpoint-every", [&](const std::string& given) { set_interval(given, arguments); });
  base::add_number(parser, "--keep-checkpoints", arguments.keep_checkpoints);
  parser
      .add_option_function<std::string>("--resume",
                                        [&](const std::string& directory) {
                                          arguments.resume = true;
                                          if (directory != kWhereItIs)
                                            arguments.resumed = directory;
                                        })
      ->expected(0, 1)
      ->default_str(kWhereItIs);
}

void add_nodes(CLI::App& parser, TrainArguments& arguments) {
  add_hosts(parser, arguments.hosts, arguments.nodes);
  base::add_choice(parser, "--wire", control::kWires, arguments.wire);
  base::add_choice(parser, "--bind", control::kBinds, arguments.bind);
  base::add_number(parser, "--max-restarts", arguments.elastic.max_restarts);
  base::add_number(parser, "--min-workers", arguments.elastic.min_workers);
  base::add_number(parser, "--step-timeout", arguments.elastic.step_timeout_s);
  base::add_number(parser, "--timeout", arguments.elastic.timeout_s);
  parser.add_option("--faults", arguments.elastic.faults);
  base::add_number(parser, "--fault-seed", arguments.elastic.fault_seed);
}

// A number that may change makes the job elastic.
void take_workers(TrainArguments& arguments) {
  auto& asked = arguments.workers_range;
  if (!asked) return;
  if (!asked->most) {
    arguments.workers = std::exchange(asked, std::nullopt)->least;
    return check_range("--workers", arguments.workers, 1, control::kMostWorkers);
  }
  const std::string text = fmt::format("--workers {}:{}", asked->least, *asked->most);
  if (arguments.elastic.min_workers)
    refuse(text + " says the least number of workers: leave out --min-workers");
  if (arguments.accumulate > 0)
    refuse(text + ": --accumulate depends on the number of workers; give --shards in its place");
  if (arguments.several_hosts() || !arguments.hosts.list.empty())
    refuse(text + " works on one host so far; give one number");
  arguments.elastic.min_workers = asked->least;
}

// The number of workers on all hosts is known when their launchers have met.
void count_hosts(TrainArguments& arguments) {
  if (!arguments.hosts.list.empty()) {
    arguments.host_workers = std::exchange(arguments.workers, 0);
    return;
  }
  if (!arguments.several_hosts()) return;
  if (arguments.workers == 0) refuse("how many workers on this host of several? add --workers");
  if (arguments.compare_alone) refuse("--compare-alone is for one host: leave it out");
  arguments.host_workers = std::exchange(arguments.workers, 0);
}

void add_options(CLI::App& parser, TrainArguments& arguments) {
  base::set_up(parser);
  base::add_choice(parser, "--model", kModels, arguments.model);
  parser.add_option("--data", arguments.data);
  base::add_choice(parser, "--gpt-size", kGptSizes, arguments.gpt_size);
  base::add_number(parser, "--context", arguments.context);
  base::add_number(parser, "--vocabulary", arguments.vocabulary);
  base::add_number(parser, "--dropout", arguments.dropout);
  base::add_number(parser, "--epochs", arguments.epochs);
  base::add_number(parser, "--steps", arguments.steps);
  base::add_number(parser, "--global-batch", arguments.global_batch);
  base::add_number(parser, "--shards", arguments.shards);
  base::add_number(parser, "--accumulate", arguments.accumulate);
  base::add_choice(parser, "--buffers", kBufferRules, arguments.buffers);
  base::add_choice(parser, "--sync-batchnorm", kOnOrOff, arguments.sync_batchnorm);
  base::add_choice(parser, "--optimizer", kOptimizers, arguments.optimizer);
  base::add_number(parser, "--lr", arguments.lr);
  base::add_number(parser, "--momentum", arguments.momentum);
  base::add_number(parser, "--weight-decay", arguments.weight_decay);
  base::add_number(parser, "--clip-norm", arguments.clip_norm);
  base::add_number(parser, "--clip-value", arguments.clip_value);
  base::add_number(parser, "--ema", arguments.ema);
  base::add_number(parser, "--noise-scale", arguments.noise_scale_every)
      ->expected(0, 1)
      ->default_str(kDefaultNoiseSteps);
  base::add_number(parser, "--scale-lr", arguments.scale_lr_from)
      ->expected(0, 1)
      ->default_str(kDefaultScaledFrom);
  base::add_choice(parser, "--scale-rule", kScalings, arguments.scale_rule);
  base::add_number(parser, "--warmup", arguments.warmup_steps);
  base::add_choice(parser, "--decay", kDecays, arguments.decay);
  base::add_number(parser, "--seed", arguments.seed);
  add_local(parser, arguments.local_given);
  base::add_number(parser, "--threads", arguments.threads);
  base::add_choice(parser, "--onednn", kOpenSwitches, arguments.onednn);
  base::add_choice(parser, "--flush-denormal", kSwitches, arguments.flush_denormal);
  base::add_choice(parser, "--deterministic", kSwitches, arguments.deterministic);
  base::add_choice(parser, "--precision", kPrecisions, arguments.precision);
  base::add_number(parser, "--loss-scale", arguments.loss_scale);
  base::add_choice(parser, "--device", control::kDevices, arguments.device);
  add_workers(parser, arguments.workers_range);
  parser.add_flag("--share-gpus", arguments.share_gpus);
  base::add_choice(parser, "--graphs", kOpenSwitches, arguments.graphs);
  parser.add_option("--engine", arguments.engine);
  add_nodes(parser, arguments);
  parser.add_option("--codec", arguments.codec);
  base::add_choice(parser, "--algorithm", kAlgorithms, arguments.algorithm);
  base::add_number(parser, "--bucket-bytes", arguments.bucket_bytes);
  base::add_number(parser, "--loader-threads", arguments.loader_threads);
  add_checkpoint(parser, arguments);
  parser.add_flag("--overwrite", arguments.overwrite);
  parser.add_flag("--verify-data", arguments.verify_data);
  add_file(parser, "--report", arguments.report);
  add_file(parser, "--hashes", arguments.hashes);
  add_file(parser, "--verify", arguments.verify);
  base::add_number(parser, "--until", arguments.until);
  base::add_choice(parser, "--check-divergence", kOnOrOff, arguments.check_divergence);
  parser.add_flag("--compare-alone", arguments.compare_alone);
  parser.add_flag("-q,--quiet", arguments.quiet);
}

// How many shards the job has if it starts with so many workers.
std::int64_t shards_on(const TrainArguments& arguments, int workers) {
  if (arguments.shards > 0) return arguments.shards;
  if (arguments.accumulate > 0) return std::int64_t{workers} * arguments.accumulate;
  return plan::default_shards(arguments.global_batch);
}

void check_update(const TrainArguments& arguments) {
  check_range("--clip-norm", arguments.clip_norm, 0.0, 1e30);
  check_range("--clip-value", arguments.clip_value, 0.0, 1e30);
  check_range("--ema", arguments.ema, 0.0, 1.0);
  if (arguments.ema == 1) refuse("--ema 1: the average would never change; give a number below 1");
  if (arguments.clip_norm > 0 && arguments.clip_value > 0)
    refuse("--clip-norm and --clip-value: give one");
  if (arguments.noise_scale_every > 0 && codec::parse(arguments.codec))
    refuse("--noise-scale compares gradients that a codec changes: leave out --codec");
  if (arguments.noise_scale_every > 0 && arguments.clip_value > 0)
    refuse("--noise-scale is of whole gradients: leave out --clip-value, or use --clip-norm");
  if (arguments.momentum) {
    check_range("--momentum", *arguments.momentum, 0.0, 1.0);
    if (arguments.optimizer != OptimizerKind::kSgd && arguments.optimizer != OptimizerKind::kLars &&
        arguments.optimizer != OptimizerKind::kRmsProp)
      refuse(fmt::format("--momentum: {} has none; sgd, lars and rmsprop do",
                         name(arguments.optimizer)));
  }
  if (arguments.weight_decay) check_range("--weight-decay", *arguments.weight_decay, 0.0, 1e6);
}

void check_numbers(const TrainArguments& arguments) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  check_range("--loader-threads", arguments.loader_threads, 0, 256);
  check_range("--shards", arguments.shards, 0, 1 << 16);
  check_range("--accumulate", arguments.accumulate, 0, 1 << 12);
  check_range<std::int64_t>("--epochs", arguments.epochs, 0, kMost);
  check_range<std::int64_t>("--steps", arguments.steps, 0, kMost);
  check_range<std::int64_t>("--global-batch", arguments.global_batch, 1, kMost);
  check_range<std::int64_t>("--scale-lr", arguments.scale_lr_from, 0, kMost);
  check_range<std::int64_t>("--noise-scale", arguments.noise_scale_every, 0, kMost);
  check_range<std::int64_t>("--warmup", arguments.warmup_steps, 0, kMost);
  check_range<std::int64_t>("--context", arguments.context, 1, 1 << 20);
  check_range<std::int64_t>("--vocabulary", arguments.vocabulary, 0, 1 << 24);
  codec::parse(arguments.codec);
  check_range<std::int64_t>("--bucket-bytes", arguments.bucket_bytes, 0, kMost);
  check_range<std::int64_t>("--checkpoint-every", arguments.checkpoint_every, 0, kMost);
  check_range("--keep-checkpoints", arguments.keep_checkpoints, 1, 1 << 20);
  check_range<std::int64_t>("--until", arguments.until, -1, kMost);
  check_range("--lr", arguments.learning_rate(), 0.0, 1e6);
  check_update(arguments);
  if (arguments.loss_scale) check_range("--loss-scale", *arguments.loss_scale, 0.0, 1e38);
}

void check_batch(const TrainArguments& arguments) {
  if (arguments.scale_rule != Scaling::kLinear && arguments.scale_lr_from == 0)
    refuse("--scale-rule says how --scale-lr scales: add --scale-lr");
  if (arguments.shards > 0 && arguments.accumulate > 0)
    refuse("--shards and --accumulate say the same in two ways: give one");
  if (arguments.resume && arguments.shards == 0) return;  // the checkpoint says
  if (arguments.workers == 0) return;                     // still open
  const std::int64_t shards = shards_on(arguments, arguments.workers);
  if (arguments.noise_scale_every > 0 && shards == 1)
    refuse("--noise-scale compares shards, and this job has one: give it --shards 2 or more");
  if (arguments.global_batch % shards != 0) {
    refuse(
        fmt::format("--global-batch {} cannot be divided among {} shards: choose a multiple of {}",
                    arguments.global_batch, shards, shards));
  }
  const auto& range = arguments.workers_range;
  const int workers = range ? *range->most : arguments.workers;
  if (shards < workers) {
    refuse(fmt::format("{} shard{} cannot be hosted by {} workers: use at most {}, or --shards {}",
                       shards, shards == 1 ? "" : "s", workers, shards, workers));
  }
}

// Decides from --checkpoint, --resume and --overwrite where checkpoints are.
void settle_checkpoints(TrainArguments& arguments) {
  const std::string& from = arguments.resumed;
  if (arguments.resume && arguments.overwrite)
    refuse("--resume goes on from a checkpoint and --overwrite replaces it: give one");
  if (!from.empty()) {
    if (arguments.checkpoint && arguments.checkpoint != from) {
      const std::string& kept = *arguments.checkpoint;
      refuse(fmt::format("--resume {} and --checkpoint {} are not the same: give one", from,
                         kept.empty() ? kNoCheckpoint : kept));
    }
    arguments.checkpoint = from;
    if (!base::is_directory(from)) {
      refuse(fmt::format("--resume {}: {}", from,
                         base::exists(from) ? "it is no directory: name the one that it lies in"
                                            : "there is no such directory"));
    }
    if (!formats::holds_checkpoint(from))
      refuse(fmt::format("--resume {}: it holds no checkpoint", from));
  }
  const bool named = arguments.checkpoint.has_value() && !arguments.checkpoint->empty();
  if (arguments.resume && !named) refuse("--resume from where? give a directory: --resume DIR");
  if (arguments.overwrite && !named)
    refuse("--overwrite what? give its directory: --checkpoint DIR");
}

// Refuses options that do not fit the device.
void check_devices(const TrainArguments& arguments) {
  const std::string of_gpus = control::engine_for(DeviceKind::kCuda);
  if (arguments.on(DeviceKind::kCpu)) {
    if (arguments.engine == of_gpus)
      refuse("--engine nccl is for GPUs: add --device cuda, or use another engine");
    if (arguments.share_gpus) refuse("--share-gpus is for GPUs: add --device cuda");
    if (arguments.graphs == Switch::kOn) refuse("--graphs on is for GPUs: add --device cuda");
  }
  if (arguments.on(DeviceKind::kCuda) && !arguments.engine.empty() && arguments.engine != of_gpus)
    refuse(fmt::format("--engine {} moves no memory of GPUs: leave it out, or use nccl",
                       arguments.engine));
}

}  // namespace

const char* train_help() {
  return kHelp;
}

const char* name(Model model) {
  return base::word_for(model, kModels);
}
const char* name(GptSize size) {
  return base::word_for(size, kGptSizes);
}
const char* name(OptimizerKind optimizer) {
  return base::word_for(optimizer, kOptimizers);
}
const char* name(Switch choice) {
  return base::word_for(choice, kOpenSwitches);
}
const char* name(Precision precision) {
  return base::word_for(precision, kPrecisions);
}
const char* name(Decay decay) {
  return base::word_for(decay, kDecays);
}
const char* name(Scaling rule) {
  return base::word_for(rule, kScalings);
}

Switch switch_named(const std::string& word) {
  return base::choice_named(word, kSwitches).value_or(Switch::kOpen);
}
Precision precision_named(const std::string& word) {
  return base::choice_named(word, kPrecisions).value_or(Precision::kOpen);
}

DeviceKind device_asked_for(const TrainArguments& arguments) {
  if (arguments.device) return *arguments.device;
  const std::string engine = arguments.engine.empty()
                                 ? base::environment("LOCKSTEP_ENGINE").value_or("")
                                 : arguments.engine;
  return control::device_asked("", engine, base::environment);
}

void check_together(const TrainArguments& arguments) {
  check_devices(arguments);
  check_batch(arguments);
}

TrainArguments parse_train_arguments(const std::vector<std::string>& arguments) {
  TrainArguments parsed;
  CLI::App parser;
  add_options(parser, parsed);
  base::parse_words(parser, arguments, [](const std::string& text) { refuse(text); });
  settle_checkpoints(parsed);
  if (!parsed.resume) parsed.device = device_asked_for(parsed);
  const bool checkpoint_says_shards = parsed.resume && parsed.shards == 0;
  take_workers(parsed);
  if (parsed.workers == 0 && !checkpoint_says_shards && parsed.on(DeviceKind::kCpu) &&
      !parsed.several_hosts() && parsed.hosts.list.empty()) {
    parsed.workers = workers_for_this_host(parsed, cores_of_this_host());
  }
  count_hosts(parsed);
  if (parsed.epochs > 0 && parsed.steps > 0) refuse("give either --epochs or --steps");
  if (parsed.epochs == 0 && parsed.steps == 0) {
    if (parser.count("--epochs") + parser.count("--steps") > 0) refuse("nothing to do: 0 steps");
    parsed.epochs = kDefaultEpochs;
  }
  if (parser.count("--dropout") > 0) check_range("--dropout", parsed.dropout, 0.0, 1.0);
  if (parser.count("--threads") > 0)
    check_range("--threads", parsed.threads, 1, control::kMostThreads);
  check_numbers(parsed);
  parsed.local = local_steps(parsed.local_given);
  check_local(parsed);
  check_together(parsed);
  check_paths(parsed);
  return parsed;
}

int cores_of_this_host() {
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

int workers_for_this_host(const TrainArguments& arguments, int places) {
  int workers = places;
  const auto fits = [&] {
    const std::int64_t shards = shards_on(arguments, workers);
    return shards >= workers && arguments.global_batch % shards == 0;
  };
  while (workers > 1 && !fits()) --workers;
  return arguments.workers_range ? arguments.workers_range->start_with(workers) : workers;
}

}  // namespace lockstep::app

#include "app/train/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/autocast.h>
#include <lockstep/errors.h>
#include <lockstep/grad_scaler.h>
#include <lockstep/schedule.h>
#include <lockstep/sync_batchnorm.h>

#include <algorithm>
#include <atomic>

#include "app/train/progress.h"
#include "app/train/shard_probe.h"
#include "control/gather_text.h"
#include "plan/rounds.h"
#include "plan/traffic.h"
#include "plan/tree.h"
#include "torch/device/onednn.h"
#include "torch/models/models.h"
#include "torch/replica/replicated.h"
#include "torch/step/arithmetic.h"

namespace lockstep::app {
namespace {

constexpr double kAloneSeconds = 2;
constexpr std::int64_t kAloneWarmUp = 3;

// A probe takes as long as three or four steps. In a shorter job it would cost too much.
constexpr std::int64_t kStepsForAProbe = 200;

std::atomic<bool> stop_now{false};

// A larger number is hardly a class, and the last layer of the model would be too large.
constexpr std::int64_t kMostClasses = std::int64_t{1} << 20;

// The model is made for the training data. If test data had another size, LibTorch would fail after the first epoch.
void check_data(const TrainArguments& arguments, const DataSplits& data) {
  const auto spoken = [](const std::vector<std::int64_t>& sizes) {
    return fmt::format("{}", fmt::join(sizes, "×"));
  };
  if (data.shape.classes > kMostClasses) {
    throw BadInput(fmt::format(
        "{} has class {}, and {} takes classes from 0 to {}: number the classes from 0 on",
        arguments.data, data.shape.classes - 1, name(arguments.model), kMostClasses - 1));
  }
  if (data.test->size() == 0) return;
  const std::int64_t first[] = {0};
  const auto tested = data.test->batch(samples_of(first)).data.sizes().slice(1).vec();
  if (tested == data.shape.sample) return;
  throw BadInput(fmt::format(
      "{} has training samples of {} and test samples of {}, and {} takes one size: "
      "make them alike",
      arguments.data, spoken(data.shape.sample), spoken(tested), name(arguments.model)));
}

DataSplits load_data(const TrainArguments& arguments) {
  datasets::LoadOptions options;
  options.context = arguments.context;
  options.vocabulary = arguments.vocabulary;
  options.seed = arguments.seed;
  if (arguments.model == Model::kCnn) options.sample = {1, 28, 28};
  if (arguments.model == Model::kResnet18) options.sample = {3, 32, 32};
  DataSplits data = datasets::load(arguments.data, options);
  check_data(arguments, data);
  return data;
}

std::shared_ptr<models::Net> make_model(const TrainArguments& arguments, const DataShape& shape) {
  torch::manual_seed(arguments.seed);
  return models::make(
      {name(arguments.model), name(arguments.gpt_size), arguments.dropout, arguments.vocabulary},
      shape);
}

std::shared_ptr<optim::Optimizer> make_optimizer(const TrainArguments& arguments, Replica& model) {
  const double lr = arguments.learning_rate();
  const double momentum = arguments.momentum_used();
  const double decay = arguments.weight_decay_used();
  switch (arguments.optimizer) {
    case OptimizerKind::kAdam:
      return std::make_shared<optim::Adam>(model,
                                           optim::AdamOptions{.lr = lr, .weight_decay = decay});
    case OptimizerKind::kAdamW:
      return std::make_shared<optim::AdamW>(model,
                                            optim::AdamWOptions{.lr = lr, .weight_decay = decay});
    case OptimizerKind::kRmsProp:
      return std::make_shared<optim::RMSprop>(
          model, optim::RMSpropOptions{.lr = lr, .weight_decay = decay, .momentum = momentum});
    case OptimizerKind::kAdagrad:
      return std::make_shared<optim::Adagrad>(
          model, optim::AdagradOptions{.lr = lr, .weight_decay = decay});
    case OptimizerKind::kLars:
      return std::make_shared<optim::LARS>(
          model, optim::LARSOptions{.lr = lr, .momentum = momentum, .weight_decay = decay});
    case OptimizerKind::kLamb:
      return std::make_shared<optim::LAMB>(model,
                                           optim::LAMBOptions{.lr = lr, .weight_decay = decay});
    case OptimizerKind::kSgd:
      break;
  }
  return std::make_shared<optim::SGD>(
      model, optim::SGDOptions{.lr = lr, .momentum = momentum, .weight_decay = decay});
}

std::int64_t total_steps(const TrainArguments& arguments, std::int64_t samples) {
  if (arguments.steps > 0) return arguments.steps;
  return arguments.epochs * ((samples + arguments.global_batch - 1) / arguments.global_batch);
}

// From the peak, at the end of the warm-up, to the end of the job.
Schedule decay_from(double peak, Decay decay, std::int64_t steps) {
  if (steps < 1)
    throw BadInput("--warmup leaves no steps to decay in: give more steps, or fewer to warm up");
  if (decay == Decay::kCosine) return lr_scheduler::CosineAnnealingLR{.lr = peak, .t_max = steps};
  return lr_scheduler::PolynomialLR{.lr = peak, .total_iters = steps};
}

Schedule make_schedule(const TrainArguments& arguments, std::int64_t samples) {
  LargeBatchOptions options;
  options.lr = arguments.learning_rate();
  options.global_batch = arguments.global_batch;
  options.base_batch =
      arguments.scale_lr_from > 0 ? arguments.scale_lr_from : arguments.global_batch;
  options.scaling = arguments.scale_rule;
  options.warmup_steps = arguments.warmup_steps;
  if (arguments.warmup_steps > 0 && arguments.scale_lr_from == 0)
    options.start_lr = options.lr / static_cast<double>(arguments.warmup_steps);
  if (arguments.decay != Decay::kConstant) {
    const std::int64_t steps = total_steps(arguments, samples) - arguments.warmup_steps;
    options.then = [=, decay = arguments.decay](double peak) {
      return decay_from(peak, decay, steps);
    };
  }
  return large_batch(options);
}

Score score(models::Net& net, const Batch& batch) {
  const torch::Tensor logits = models::logits(net, batch);
  const torch::Tensor target = batch.target.flatten();
  const torch::Tensor loss = torch::nn::functional::cross_entropy(
      logits, target, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
  return {loss.item<double>(), (logits.argmax(1) == target).sum().item<std::int64_t>(),
          target.size(0)};
}

torch::ScalarType half_type(Precision precision) {
  return precision == Precision::kFp16 ? torch::kFloat16 : torch::kBFloat16;
}

TrainerParts make_parts(const TrainArguments& arguments, World& world, const DataSplits& data) {
  auto net = make_model(arguments, data.shape);
  if (arguments.precision == Precision::kBf16Held) {
    net->to(torch::Device(world.device()));
    hold_weights(*net, torch::kBFloat16);
  }
  if (arguments.sync_batchnorm && convert_sync_batchnorm(*net, world) == 0)
    throw BadInput(fmt::format("--sync-batchnorm: {} has no BatchNorm; cnn and resnet18 have",
                               name(arguments.model)));
  const auto bucket = static_cast<std::size_t>(arguments.bucket_bytes);
  auto model = data_parallel(net, world,
                             {.codec = codec::parse(arguments.codec),
                              .bucket_bytes = bucket,
                              .algorithm = arguments.algorithm});
  auto optimizer = make_optimizer(arguments, model);
  optimizer->set_clip_norm(arguments.clip_norm);
  optimizer->set_clip_value(arguments.clip_value);
  if (arguments.ema > 0) optimizer->set_ema(arguments.ema);
  // Around forward and loss. No cache of converted weights: each weight is used once, so a cache would save nothing,
  // and a CUDA graph must not keep its tensors.
  const auto precision = [half = arguments.precision != Precision::kFloat32,
                          type = half_type(arguments.precision),
                          where = torch::Device(world.device()).type()] {
    return Autocast(where, type, {.enabled = half, .cache_weights = false});
  };
  precision();  // what this LibTorch does not support is refused here, and not in the first step
  return {model,
          net,
          optimizer,
          data.train,
          data.test,
          [net, precision](const Batch& batch) {
            const Autocast scope = precision();
            return models::loss(*net, batch);
          },
          [net, precision](const Batch& batch) {
            const Autocast scope = precision();
            return score(*net, batch);
          },
          make_schedule(arguments, data.train->size())};
}

TrainerOptions make_options(const TrainArguments& arguments, std::int64_t samples) {
  TrainerOptions options;
  options.steps = arguments.steps;
  options.epochs = arguments.epochs;
  options.global_batch = arguments.global_batch;
  options.shards = arguments.shards;
  options.accumulate = arguments.accumulate;
  if (arguments.loss_scale_used() > 0)
    options.scaler = GradScalerOptions{.init_scale = arguments.loss_scale_used()};
  if (arguments.buffers == BufferRule::kMean) options.buffers = ShardBufferRule::kMean;
  options.noise_scale_every = arguments.noise_scale_every;
  options.local_steps = arguments.local;
  options.seed = arguments.seed;
  options.loader_threads = arguments.loader_threads;
  options.checkpoint_directory = *arguments.checkpoint;
  options.checkpoint_every_steps = arguments.checkpoint_every;
  options.checkpoint_every_seconds = arguments.checkpoint_every_s;
  options.keep_checkpoints = arguments.keep_checkpoints;
  if (arguments.resume) options.existing_checkpoint = ExistingCheckpoint::kResume;
  if (arguments.overwrite) options.existing_checkpoint = ExistingCheckpoint::kReplace;
  options.verify_data = arguments.verify_data;
  options.check_divergence = arguments.check_divergence;
  options.hash_log = arguments.hashes;
  options.verify_log = arguments.verify;
  options.verify_until = arguments.until;
  options.stop = &stop_now;
  options.cuda_graphs = arguments.graphs != Switch::kOff;
  auto& job = options.job;
  job["model"] = name(arguments.model);
  job["data"] = arguments.data;
  if (arguments.model == Model::kGpt) job["gpt_size"] = name(arguments.gpt_size);
  job["precision"] = name(arguments.precision);
  job["dropout"] = fmt::format("{}", arguments.dropout);
  job["context"] = std::to_string(arguments.context);
  job["lr"] = fmt::format("{}", arguments.learning_rate());
  job["momentum"] = fmt::format("{}", arguments.momentum_used());
  job["weight_decay"] = fmt::format("{}", arguments.weight_decay.value_or(-1));
  job["scale_lr"] = std::to_string(arguments.scale_lr_from);
  job["warmup"] = std::to_string(arguments.warmup_steps);
  job["decay"] = name(arguments.decay);
  // Named only where it is used, so that jobs of before go on from their checkpoints.
  if (arguments.scale_rule != Scaling::kLinear) job["scale_rule"] = name(arguments.scale_rule);
  if (arguments.decay != Decay::kConstant)
    job["total_steps"] = std::to_string(total_steps(arguments, samples));
  return options;
}

// The speed of the leader alone, with the shards that it hosts in the job. The others wait meanwhile.
double samples_per_second_alone(const TrainArguments& arguments, int shards, World& world,
                                const DataSplits& data) {
  double speed = 0;
  if (world.leader()) {
    World alone = World::over(connect_alone(), world.device());
    TrainArguments own = arguments;
    own.shards = plan::hosted_shards(world.rank(), world.size(), shards).size();
    own.accumulate = 0;
    own.global_batch = arguments.global_batch / shards * own.shards;
    own.noise_scale_every = 0;
    own.checkpoint = "";
    own.resume = own.overwrite = false;
    own.verify_data = false;
    own.hashes.clear();
    own.verify.clear();
    own.epochs = 0;
    own.steps = std::int64_t{1} << 20;
    own.decay = Decay::kConstant;
    TrainerParts parts = make_parts(own, alone, data);
    parts.test = nullptr;
    std::vector<double> times;
    Trainer* trainer = nullptr;
    TrainerHooks hooks;
    double seconds = 0;
    hooks.on_step = [&](const StepRecord& record) {
      seconds += record.step_ms / 1000;
      if (record.step == kAloneWarmUp) times.clear();
      times.push_back(record.step_ms);
      if (seconds > kAloneSeconds || stop_now.load()) trainer->request_stop();
    };
    Trainer measured(alone, std::move(parts), make_options(own, data.train->size()), hooks);
    trainer = &measured;
    measured.run();
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                     times.end());
    if (!times.empty())
      speed = 1000 * static_cast<double>(own.global_batch) / times[times.size() / 2];
  }
  world.comm().broadcast({&speed, 1, DType::kFloat64}, 0).wait();
  return speed;
}

std::string opening(const TrainArguments& arguments, World& world, const TrainerParts& parts) {
  return fmt::format(
      "{} on {}: {} parameters, {} training samples, {} worker{} ({}{}), global batch {}",
      name(arguments.model), arguments.data,
      with_commas(static_cast<std::int64_t>(parts.model.parameter_count())),
      with_commas(parts.train->size()), world.size(), world.size() == 1 ? "" : "s",
      world.comm().engine(), arguments.on(DeviceKind::kCuda) ? ", cuda" : "",
      arguments.global_batch);
}

// Where checkpoints are kept, how often, and how to change that.
std::string about_checkpoints(const TrainArguments& arguments) {
  if (!arguments.verify.empty()) return "no checkpoint is written: --verify only compares";
  if (arguments.checkpoint->empty())
    return "no checkpoint is kept: a job that is cut short begins with step 0 again";
  std::string often = "after every epoch";
  if (arguments.checkpoint_every > 0)
    often = fmt::format("every {} steps", arguments.checkpoint_every);
  if (arguments.checkpoint_every_s > 0)
    often = "every " + spoken_time(arguments.checkpoint_every_s);
  return fmt::format(
      "checkpoint in {}, {} and at the end; change it with --checkpoint DIR, --checkpoint none or "
      "--checkpoint-every STEPS or 30s",
      *arguments.checkpoint, often);
}

// Not for a job whose shards are chosen already, by its checkpoint, for its memory, or for its local steps.
std::optional<ShardCost> cost_of_shards(const TrainArguments& arguments, const Trainer& trainer,
                                        World& world, const DataSplits& data) {
  const bool open = !arguments.resume && arguments.verify.empty() && arguments.accumulate == 0 &&
                    !arguments.local.enabled();
  const bool plain = !arguments.on(DeviceKind::kCuda) && arguments.precision == Precision::kFloat32;
  if (!open || !plain || trainer.total_steps() < kStepsForAProbe || world.joined_later())
    return std::nullopt;
  const ShardSizes now = shard_sizes(arguments.global_batch, trainer.shards(), world.size());
  const auto fewest = fewest_shards(arguments.global_batch, now, world.size());
  if (!fewest) return std::nullopt;
  return measure_shards(world, now, *fewest, *data.train,
                        [&] { return make_model(arguments, data.shape); });
}

TrainerHooks show_on(Progress& progress) {
  TrainerHooks hooks;
  hooks.on_step = [&](const StepRecord& record) { progress.step(record); };
  hooks.on_epoch = [&](std::int64_t epoch, const Evaluation& evaluation) {
    progress.epoch(epoch, evaluation);
  };
  return hooks;
}

// Its whole name; empty: none.
std::string codec_of(const TrainArguments& arguments) {
  const auto codec = codec::parse(arguments.codec);
  return codec ? codec->name() : "";
}

// Of so many reductions of each gradient. Gradients in memory that all workers read are summed in place, and none travels.
StepTraffic traffic_of_step(const Replica& model, Algorithm asked, int shards,
                            std::int64_t reductions) {
  replica::Replicated& state = replica::inside(model);
  const bool levels = asked == Algorithm::kAutomatic && state.banks().front().memory().on_host();
  const Algorithm algorithm = state.comm().runs(levels ? Algorithm::kTwoLevels : asked, shards);
  const int workers = state.comm().size();
  // Where another algorithm falls back to `direct`, the reduction is one, and in place all the same.
  const bool falls_back = algorithm == Algorithm::kDirect && !state.parts().encoding &&
                          state.banks().front().memory().shared();
  if (workers > 1 && (state.reads_all_gradients() || falls_back))
    return {.in_place = true, .bytes = 0, .times_ring = {}};
  if (const auto& encoding = state.parts().encoding) {
    if (encoding->begins_at() >= reductions) return {};
    const auto& buckets = state.parts().plan.buckets;
    StepTraffic traffic{.bytes = encoding->busiest(buckets, shards, workers)};
    double ring = 0;
    for (const plan::Bucket& bucket : buckets) ring += plan::ring_bytes(bucket.bytes, workers);
    if (ring > 0) traffic.times_ring = static_cast<double>(*traffic.bytes) / ring;
    return traffic;
  }
  return traffic_of(algorithm, shards, workers,
                    plan::in_layout(state.parts().plan.buckets, state.banks().layout()),
                    state.comm().hosts());
}

// What a codec saves; or that it begins behind the job's end.
std::string about_codec(const TrainArguments& arguments, const Trainer& trainer,
                        std::int64_t reductions, int workers) {
  const auto& encoding = replica::inside(trainer.reduced()).parts().encoding;
  const std::string name = encoding->codec().name();
  if (encoding->begins_at() >= reductions) {
    return fmt::format(
        "{}: encodes nothing, because it begins after {} {}, the last number of its name, and the "
        "job has {}",
        name, encoding->begins_at(), arguments.local.enabled() ? "exchanges" : "steps", reductions);
  }
  const StepTraffic traffic =
      traffic_of_step(trainer.reduced(), arguments.algorithm, trainer.shards(), reductions);
  const std::string said = spoken(traffic, {trainer.shards(), workers, arguments.local.enabled()});
  return name + (said.empty() ? "" : ": " + said);
}

// A task gets the weights, but for the slice that its worker owns, and sends as much of its gradient; and of the weights that it
// had, if delays are compensated.
StepTraffic traffic_of_task(const Replica& model, const Asynchronous& rule) {
  replica::Replicated& state = replica::inside(model);
  const auto workers = static_cast<std::size_t>(state.comm().size());
  const std::size_t once = state.layout().bytes() / workers * (workers - 1);
  return {.bytes = {}, .times_ring = {}, .of_task = once * (rule.delay_compensation > 0 ? 3 : 2)};
}

}  // namespace

void stop_requested() noexcept {
  stop_now.store(true);
}

void choose_onednn(TrainArguments& arguments, World& world) {
  const bool open = arguments.onednn == Switch::kOpen;
  const bool fast = device::kOneDnnIsFast && steps::has_onednn();
  if (open) arguments.onednn = fast ? Switch::kOn : Switch::kOff;
  if (world.joined_later()) return steps::use_onednn(arguments.onednn == Switch::kOn);
  Comm channel = world.open_channel();
  const std::string leaders = control::gather_text(channel, name(arguments.onednn)).front();
  if (open) arguments.onednn = switch_named(leaders);
  steps::use_onednn(arguments.onednn == Switch::kOn);
}

TrainReport run_training(const TrainArguments& arguments, World& world) {
  const DataSplits data = load_data(arguments);
  TrainReport report;
  TrainerParts parts = make_parts(arguments, world, data);
  report.workers = world.size();
  report.engine = world.comm().engine();
  report.parameters = parts.model.parameter_count();
  report.training_samples = data.train->size();
  const Progress::Size size{total_steps(arguments, data.train->size()), arguments.global_batch};
  Progress progress(progress_kind(arguments.quiet), size, [&world] { return world.leader(); });
  progress.line(opening(arguments, world, parts));
  progress.line(about_checkpoints(arguments));
  if (arguments.warmup_steps > 0 || arguments.scale_lr_from > 0 ||
      arguments.decay != Decay::kConstant)
    progress.line("learning rate " + make_schedule(arguments, data.train->size()).text());
  if (arguments.local.enabled())
    progress.line((arguments.local.asynchronous ? "rounds: " : "local steps: ") +
                  to_string(arguments.local));
  Trainer trainer(world, std::move(parts), make_options(arguments, data.train->size()),
                  show_on(progress));
  double alone = 0;
  if (arguments.compare_alone && world.size() > 1 && !world.joined_later()) {
    progress.line("measuring one worker alone …");
    alone = samples_per_second_alone(arguments, trainer.shards(), world, data);
  }
  const std::int64_t reductions = plan::Rounds(arguments.local).exchanges(trainer.total_steps());
  if (report.codec = codec_of(arguments); !report.codec.empty())
    progress.line("codec " + about_codec(arguments, trainer, reductions, world.size()));
  report.shard_cost = cost_of_shards(arguments, trainer, world, data);
  if (report.shard_cost && !spoken(*report.shard_cost).empty())
    progress.line(spoken(*report.shard_cost));
  report.total_steps = trainer.total_steps();
  report.result = trainer.run();
  report.traffic =
      traffic_of_step(trainer.reduced(), arguments.algorithm, report.result.shards, reductions);
  if (const auto& rule = arguments.local.asynchronous; rule && report.traffic.bytes.value_or(0) > 0)
    report.traffic = traffic_of_task(trainer.reduced(), *rule);
  if (alone > 0 && report.result.step_ms_p50 > 0) {
    const double together =
        1000 * static_cast<double>(arguments.global_batch) / report.result.step_ms_p50;
    report.speedup_over_one_worker = together / alone;
  }
  return report;
}

}  // namespace lockstep::app

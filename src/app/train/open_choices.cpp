#include "app/train/open_choices.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>

#include "base/environment.h"
#include "control/device_choice.h"
#include "control/launch/options.h"

namespace lockstep::app {
namespace {

// 0 if the checkpoint does not name it. BadInput if its value is no sensible number.
int number_in(const SavedJob& saved, const char* property) {
  const auto found = saved.find(property);
  if (found == saved.end()) return 0;
  // May be "2, of OpenBLAS 4": the job's own number comes first.
  const auto number = base::parse_number(found->second.substr(0, found->second.find(',')));
  if (!number || *number < 0 || *number > (1 << 24)) {
    throw BadInput(fmt::format("the checkpoint is damaged: it says {} = {}; take an earlier one",
                               property, found->second));
  }
  return static_cast<int>(*number);
}

std::string text_in(const SavedJob& saved, const char* property) {
  const auto found = saved.find(property);
  return found == saved.end() ? "" : found->second;
}

// A checkpoint names the GPU, too: "cuda NVIDIA H200 sm_90".
void choose_device(TrainArguments& arguments, const SavedJob& saved) {
  if (arguments.device) return;
  const std::string said = text_in(saved, "device");
  if (said.empty()) {
    arguments.device = device_asked_for(arguments);
  } else {
    const bool cuda = said.starts_with(control::name(DeviceKind::kCuda));
    arguments.device = cuda ? DeviceKind::kCuda : DeviceKind::kCpu;
  }
}

int places_for_workers(const TrainArguments& arguments, cuda::Gpus& gpus) {
  if (arguments.on(DeviceKind::kCpu)) return cores_of_this_host();
  const auto found = gpus.find();
  if (found.count < 1) throw BadInput("--device cuda: " + found.missing);
  return found.count;
}

}  // namespace

void make_open_choices(TrainArguments& arguments) {
  make_open_choices(arguments, saved_job(arguments));
}

void make_open_choices(TrainArguments& arguments, const SavedJob& saved, cuda::Gpus& gpus) {
  const auto choose = [&](Switch& choice, const char* property, Switch otherwise) {
    if (choice != Switch::kOpen) return;
    const Switch said = switch_named(text_in(saved, property));
    choice = said == Switch::kOpen ? otherwise : said;
  };
  if (!arguments.checkpoint) arguments.checkpoint = "";
  choose(arguments.onednn, "onednn", Switch::kOpen);
  choose(arguments.flush_denormal, "flush_denormal", Switch::kOff);
  choose(arguments.deterministic, "deterministic", Switch::kOn);
  const Precision said = precision_named(text_in(saved, "precision"));
  if (arguments.precision == Precision::kOpen)
    arguments.precision = said == Precision::kOpen ? Precision::kFloat32 : said;
  choose_device(arguments, saved);
  if (arguments.threads == 0)
    arguments.threads = std::clamp(number_in(saved, "threads"), 1, control::kMostThreads);
  if (arguments.workers == 0) {
    TrainArguments counted = arguments;  // the Trainer reads the shards itself
    if (counted.shards == 0) counted.shards = std::max(number_in(saved, "shards"), 0);
    arguments.workers = workers_for_this_host(counted, places_for_workers(arguments, gpus));
  }
  check_together(arguments);
}

void check_gpus(const TrainArguments& arguments, cuda::Gpus& gpus) {
  if (!arguments.on(DeviceKind::kCuda)) return;
  const auto lookup = [&](const char* name) -> std::optional<std::string> {
    if (arguments.share_gpus && std::string(name) == "LOCKSTEP_SHARE_GPUS") return "1";
    return base::environment(name);
  };
  control::LaunchInfo last;
  const int here = arguments.several_hosts() ? arguments.host_workers : arguments.workers;
  last.size = last.local_size = here;
  last.rank = last.local_rank = here - 1;
  try {
    control::choose_gpu(last, gpus.find(), lookup);
  } catch (const Error& error) {
    throw BadInput(fmt::format("--device cuda: {}", error.what()));
  }
}

std::vector<std::pair<std::string, std::string>> worker_variables(const TrainArguments& arguments) {
  std::vector<std::pair<std::string, std::string>> variables;
  if (!arguments.on(DeviceKind::kCuda)) return variables;
  if (arguments.share_gpus) variables.emplace_back("LOCKSTEP_SHARE_GPUS", "1");
  // Without it cuBLAS may give other bits the next time, and LibTorch refuses to use it.
  if (arguments.deterministic == Switch::kOn && !base::environment("CUBLAS_WORKSPACE_CONFIG"))
    variables.emplace_back("CUBLAS_WORKSPACE_CONFIG", ":4096:8");
  return variables;
}

std::vector<std::string> as_options(const TrainArguments& arguments) {
  return {
      "--nodes",          "1",  // --workers counts those of all hosts
      "--node-rank",      "0",
      "--threads",        std::to_string(arguments.threads),
      "--onednn",         name(arguments.onednn),
      "--flush-denormal", name(arguments.flush_denormal),
      "--deterministic",  name(arguments.deterministic),
      "--precision",      name(arguments.precision),
      "--device",         control::name(*arguments.device),
      "--workers",        std::to_string(arguments.workers),
      "--checkpoint",     arguments.checkpoint->empty() ? kNoCheckpoint : *arguments.checkpoint};
}

std::string advice(const TrainArguments& arguments, const SavedJob& saved,
                   const std::string& property) {
  if (const auto found = saved.find(property); found != saved.end()) {
    return fmt::format(
        "the checkpoint in {} was made with {} = {}: go on from it on a host that can, or use "
        "another checkpoint directory",
        *arguments.checkpoint, property, found->second);
  }
  if (property == "threads") return "use fewer --threads";
  if (property == "device") return "use --device cpu, or build with a LibTorch for CUDA";
  return property == "onednn" ? "use --onednn off" : "use --flush-denormal off";
}

}  // namespace lockstep::app

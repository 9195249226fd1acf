#include "app/train/open_choices.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cstdlib>

#include "base/environment.h"
#include "control/device_choice.h"

namespace lockstep::app {
namespace {

// 0 if it is not there. BadInput if it is no number that a job has.
int number_in(const SavedJob& saved, const char* property) {
  const auto found = saved.find(property);
  if (found == saved.end()) return 0;
  // "2, of OpenBLAS 4": of threads that differ, the job's own come first.
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
  if (!arguments.device.empty()) return;
  const std::string said = text_in(saved, "device");
  if (said.empty()) {
    arguments.device = device_asked_for(arguments);
  } else {
    arguments.device = said.starts_with("cuda") ? "cuda" : "cpu";
  }
}

int places_for_workers(const TrainArguments& arguments, cuda::Gpus& gpus) {
  if (arguments.device == "cpu") return cores_of_this_host();
  const auto found = gpus.find();
  if (found.count < 1) throw BadInput("--device cuda: " + found.missing);
  return found.count;
}

}  // namespace

void make_open_choices(TrainArguments& arguments) {
  make_open_choices(arguments, saved_job(arguments));
}

void make_open_choices(TrainArguments& arguments, const SavedJob& saved, cuda::Gpus& gpus) {
  const auto choose = [&](std::string& choice, const char* property, const char* otherwise) {
    if (choice != kOpen) return;
    const std::string said = text_in(saved, property);
    choice = said == "on" || said == "off" ? said : otherwise;
  };
  if (arguments.checkpoint == kOpen || arguments.checkpoint == kNoCheckpoint)
    arguments.checkpoint.clear();
  choose(arguments.onednn, "onednn", kOpen);
  choose(arguments.flush_denormal, "flush_denormal", "off");
  choose(arguments.deterministic, "deterministic", "on");
  if (arguments.precision == kOpen) {
    const std::string said = text_in(saved, "precision");
    arguments.precision = said.starts_with("bf16") ? said : "float32";
  }
  const bool precision_is_saved = arguments.precision == text_in(saved, "precision");
  choose_device(arguments, saved);
  if (precision_is_saved && arguments.precision == "bf16-held" && arguments.device == "cpu") {
    throw BadInput(
        "the checkpoint was made with --precision bf16-held, which is for GPUs: go on with "
        "--device "
        "cuda, or choose another --checkpoint");
  }
  if (arguments.threads == 0)
    arguments.threads = std::clamp(number_in(saved, "threads"), 1, kMostThreads);
  if (arguments.workers == 0) {
    TrainArguments counted = arguments;  // the Trainer reads the shards itself
    if (counted.shards == 0) counted.shards = std::max(number_in(saved, "shards"), 0);
    arguments.workers = workers_for_this_host(counted, places_for_workers(arguments, gpus));
  }
  check_together(arguments);
}

void check_gpus(const TrainArguments& arguments, cuda::Gpus& gpus) {
  if (arguments.device != "cuda") return;
  const auto lookup = [&](const char* name) -> std::optional<std::string> {
    if (arguments.share_gpus && std::string(name) == "LOCKSTEP_SHARE_GPUS") return "1";
    return base::environment(name);
  };
  control::Place last;
  last.size = last.local_size = arguments.workers;
  last.rank = last.local_rank = arguments.workers - 1;
  try {
    control::choose_gpu(last, gpus.find(), lookup);
  } catch (const Error& error) {
    throw BadInput(fmt::format("--device cuda: {}", error.what()));
  }
}

std::vector<std::pair<std::string, std::string>> worker_variables(const TrainArguments& arguments) {
  std::vector<std::pair<std::string, std::string>> variables;
  if (arguments.device != "cuda") return variables;
  if (arguments.share_gpus) variables.emplace_back("LOCKSTEP_SHARE_GPUS", "1");
  // Without it cuBLAS may give other bits the next time, and LibTorch refuses to use it.
  if (arguments.deterministic == "on" && !base::environment("CUBLAS_WORKSPACE_CONFIG"))
    variables.emplace_back("CUBLAS_WORKSPACE_CONFIG", ":4096:8");
  return variables;
}

std::vector<std::string> as_options(const TrainArguments& arguments) {
  return {"--threads",        std::to_string(arguments.threads),
          "--onednn",         arguments.onednn,
          "--flush-denormal", arguments.flush_denormal,
          "--deterministic",  arguments.deterministic,
          "--precision",      arguments.precision,
          "--device",         arguments.device,
          "--workers",        std::to_string(arguments.workers),
          "--checkpoint",     arguments.checkpoint.empty() ? kNoCheckpoint : arguments.checkpoint};
}

std::string advice(const TrainArguments& arguments, const SavedJob& saved,
                   const std::string& property) {
  if (const auto found = saved.find(property); found != saved.end()) {
    return fmt::format(
        "the checkpoint in {} was made with {} = {}: go on from it on a host that can, or use "
        "another checkpoint directory",
        arguments.checkpoint, property, found->second);
  }
  if (property == "threads") return "use fewer --threads";
  if (property == "device") return "use --device cpu, or build with a LibTorch for CUDA";
  return property == "onednn" ? "use --onednn off" : "use --flush-denormal off";
}

}  // namespace lockstep::app

#include "control/device_choice.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <cstdlib>

namespace lockstep::control {
namespace {

DeviceKind device_named(const std::string& text, const char* where) {
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    if (text == name(kind)) return kind;
  }
  throw BadInput(fmt::format("{} {}: there is no such device; choose cpu or cuda", where, text));
}

bool may_share(const Lookup& lookup) {
  const std::string said = lookup("LOCKSTEP_SHARE_GPUS").value_or("0");
  if (said != "0" && said != "1")
    throw BadInput(fmt::format("LOCKSTEP_SHARE_GPUS={}: give 1 or 0", said));
  return said == "1";
}

// "4 workers", "1 GPU"
std::string counted(int count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

DeviceKind device_asked(const std::string& device, const std::string& engine,
                        const Lookup& lookup) {
  const bool for_gpus = engine == engine_for(DeviceKind::kCuda);
  DeviceKind kind = for_gpus ? DeviceKind::kCuda : DeviceKind::kCpu;
  if (!device.empty()) {
    kind = device_named(device, "JoinOptions::device");
  } else if (const auto said = lookup("LOCKSTEP_DEVICE")) {
    kind = device_named(*said, "LOCKSTEP_DEVICE");
  }
  if (for_gpus && kind == DeviceKind::kCpu)
    throw BadInput("the nccl engine is for GPUs: ask for the device cuda, or for another engine");
  return kind;
}

const char* name(DeviceKind kind) noexcept {
  return kind == DeviceKind::kCuda ? "cuda" : "cpu";
}

std::string engine_for(DeviceKind kind) {
  return kind == DeviceKind::kCuda ? "nccl" : "";
}

GpuChoice choose_gpu(const LaunchInfo& info, const cuda::FoundGpus& found, const Lookup& lookup) {
  if (found.count < 1) throw Unavailable(found.missing);
  if (info.local_size <= found.count) return {info.local_rank, {}};
  // srun --gpus-per-task shows each worker its own.
  if (info.launcher == Launcher::kSlurm && lookup("SLURM_GPUS_PER_TASK")) return {0, {}};
  if (!may_share(lookup)) {
    const auto visible = lookup("CUDA_VISIBLE_DEVICES");
    throw BadInput(
        fmt::format("{} and {} on this host{}: use at most {}, or for tests LOCKSTEP_SHARE_GPUS=1",
                    counted(info.local_size, "worker"), counted(found.count, "GPU"),
                    visible ? fmt::format(" (CUDA_VISIBLE_DEVICES={})", *visible) : "",
                    counted(found.count, "worker")));
  }
  GpuChoice choice{info.local_rank % found.count, {}};
  choice.variables.emplace_back("NCCL_HOSTID", fmt::format("lockstep-rank-{}", info.rank));
  if (info.local_size == info.size) choice.variables.emplace_back("NCCL_SOCKET_IFNAME", "lo");
  return choice;
}

Device take_device(DeviceKind kind, const LaunchInfo& info, cuda::Gpus& gpus,
                   const Lookup& lookup) {
  if (kind == DeviceKind::kCpu) return {};
  const auto choice = choose_gpu(info, gpus.find(), lookup);
  gpus.use(choice.index);
  for (const auto& [name, value] : choice.variables) ::setenv(name.c_str(), value.c_str(), 0);
  return {kind, choice.index};
}

}  // namespace lockstep::control

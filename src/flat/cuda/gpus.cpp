#include "flat/cuda/gpus.h"

#include <fmt/format.h>

#include "base/environment.h"
#include "flat/cuda/runtime.h"

namespace lockstep::cuda {
namespace {

// 13000 is 13.0.
std::string version_text(int number) {
  return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

std::string no_device() {
  const auto visible = base::environment("CUDA_VISIBLE_DEVICES");
  return fmt::format("there is no GPU here that CUDA can use{}: see `lockstep doctor`",
                     visible ? fmt::format(" (CUDA_VISIBLE_DEVICES={})", *visible) : "");
}

// CUDA gives the same error for a driver that is too old and for a missing driver.
std::string unfit_driver() {
  int driver = 0;
  int runtime = 0;
  static_cast<void>(cudaDriverGetVersion(&driver));
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  if (driver == 0)
    return "there is no driver for GPUs here: install NVIDIA's, or start the container with --gpus";
  return fmt::format(
      "the GPU's driver is for CUDA {} and this build needs CUDA {}: install a newer driver, or "
      "build with an older toolkit",
      version_text(driver), version_text(runtime));
}

class CudaGpus : public Gpus {
 public:
  FoundGpus find() override {
    int count = 0;
    const cudaError_t result = cudaGetDeviceCount(&count);
    if (result == cudaSuccess && count > 0) return {count, ""};
    static_cast<void>(cudaGetLastError());  // or a later call would report it as an error
    if (result == cudaSuccess || result == cudaErrorNoDevice) return {0, no_device()};
    if (result == cudaErrorInsufficientDriver) return {0, unfit_driver()};
    return {0, fmt::format("the GPUs cannot be used: {}", cudaGetErrorString(result))};
  }
  void use(int index) override { check(cudaSetDevice(index), "cudaSetDevice"); }
  std::string model(int index) override {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
#if defined(LOCKSTEP_RCCL)
    return fmt::format("{} {}", properties.name, properties.gcnArchName);
#else
    return fmt::format("{} sm_{}{}", properties.name, properties.major, properties.minor);
#endif
  }
};

}  // namespace

Gpus& gpus() {
  static CudaGpus all;
  return all;
}

}  // namespace lockstep::cuda

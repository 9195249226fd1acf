#include "torch/step/arithmetic.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/processor.h"
#include "control/arithmetic_name.h"
#include "torch/device/instructions.h"

namespace lockstep::steps {
namespace {

int openblas_threads(int otherwise) {
  auto* const ask = device::loaded_function<int()>("openblas_get_num_threads");
  return ask == nullptr ? otherwise : ask();
}

// A library may have changed the setting when it was loaded, before or after OpenBLAS made its threads. So it is set in any
// case, and those threads are ended.
void set_denormals(bool flush) {
  if (!base::set_flush_denormals(flush)) {
    throw CannotDo(
        "flush_denormal",
        "this processor cannot take denormal numbers for zero, as far as Lockstep knows it");
  }
  if (auto* end_threads = device::loaded_function<int()>("blas_thread_shutdown_")) end_threads();
}

// OpenBLAS cuts the number in its variable to the number of cores when it is loaded. A job's number is not cut.
void set_threads(int threads) {
  at::set_num_threads(threads);
  auto* const set_openblas = device::loaded_function<void(int)>("openblas_set_num_threads");
  if (openblas_threads(threads) != threads && set_openblas != nullptr) set_openblas(threads);
  if (const int got = openblas_threads(threads); got != threads) {
    throw CannotDo("threads",
                   fmt::format("OpenBLAS has at most {} threads here, and the job has {}: its "
                               "result would be another one",
                               got, threads));
  }
}

// Newer LibTorch fills new memory with NaN if operators are deterministic, to find code that reads it too early. That is
// a pass over memory for each tensor.
template <typename Context>
void leave_fresh_memory_alone(Context& context) {
  if constexpr (requires { context.setDeterministicFillUninitializedMemory(false); })
    context.setDeterministicFillUninitializedMemory(false);
}

// cuDNN: only algorithms that give the same bits, chosen by rule and not by measuring. Attention: the backward of flash
// obeys setDeterministicAlgorithms; the other fused kernels have no deterministic backward and would be refused, so
// LibTorch's plain matrix products take their place.
template <typename Context>
void use_deterministic_kernels_of_gpus(Context& context) {
  context.setBenchmarkCuDNN(false);
  context.setDeterministicCuDNN(true);
  context.setSDPUseFlash(true);
  context.setSDPUseMath(true);
  if constexpr (requires { context.setSDPUseMemEfficient(false); })
    context.setSDPUseMemEfficient(false);
  if constexpr (requires { context.setSDPUseCuDNN(false); }) context.setSDPUseCuDNN(false);
}

// By its name. OMP_NUM_THREADS and MKL_NUM_THREADS are not among them: the property `threads` says the number.
bool changes_arithmetic(std::string_view name) {
  static constexpr std::array<std::string_view, 5> kNames = {
      "OMP_DYNAMIC", "OMP_THREAD_LIMIT", "OPENBLAS_BLOCK_FACTOR", "GOTO_BLOCK_FACTOR",
      "OPENBLAS_L2_SIZE"};
  if (std::find(kNames.begin(), kNames.end(), name) != kNames.end()) return true;
  if (name == "MKL_NUM_THREADS" || name.ends_with("_VERBOSE")) return false;
  static constexpr std::array<std::string_view, 4> kBeginnings = {"DNNL_", "ONEDNN_", "MKL_",
                                                                  "TORCH_MKLDNN_"};
  return std::any_of(kBeginnings.begin(), kBeginnings.end(),
                     [&](std::string_view beginning) { return name.starts_with(beginning); });
}

// If a program has not called set_arithmetic(), OpenBLAS may have another number than LibTorch.
std::string threads_in_use() {
  const int threads = at::get_num_threads();
  const int blas = openblas_threads(threads);
  return blas == threads ? std::to_string(threads)
                         : fmt::format("{}, of OpenBLAS {}", threads, blas);
}

// A digest of how LibTorch, OpenBLAS, oneDNN and MKL were built. Workers with different ones may compute different bits.
std::string kernels_in_use() {
  std::string said = at::show_config();
  if (auto* ask = device::loaded_function<const char*()>("openblas_get_config")) said += ask();
  return base::to_hex(base::sha256(said)).substr(0, 16);
}

std::string deterministic_in_use() {
  const auto& context = at::globalContext();
  if (!context.deterministicAlgorithms()) return "off";
  return context.deterministicAlgorithmsWarnOnly() ? "warn" : "on";
}

}  // namespace

void use_deterministic_operators(bool on) {
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms(on, /*warn_only=*/false);
  leave_fresh_memory_alone(context);
  if (on) use_deterministic_kernels_of_gpus(context);
}

void set_arithmetic(const Arithmetic& choices) {
  set_denormals(choices.flush_denormals);
  set_threads(choices.threads);
  use_deterministic_operators(choices.deterministic);
}

void require_cuda() {
  if (!at::globalContext().hasCUDA())
    throw CannotDo("device", "this LibTorch was built without CUDA");
}

bool has_onednn() {
  return at::globalContext().hasMKLDNN();
}

void use_onednn(bool on) {
  if (on && !has_onednn()) throw CannotDo("onednn", "this LibTorch was built without oneDNN");
  at::globalContext().setUserEnabledMkldnn(on);
}

std::string arithmetic_environment(Device device) {
  std::vector<std::string> found;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('='));
    if (!changes_arithmetic(name) && !changes_arithmetic_of(device, name)) continue;
    found.emplace_back(text);
    // Checkpoints keep it as text.
    std::replace_if(
        found.back().begin(), found.back().end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  }
  if (found.empty()) return "none";
  std::sort(found.begin(), found.end());
  return fmt::format("{}", fmt::join(found, " "));
}

namespace {

// The part of it that no program changes after its start. Set before main(): join() asks for it.
std::string lasting_arithmetic() {
  return fmt::format("LibTorch {}, kernels {}, instructions {}, processor {}, environment {}",
                     TORCH_VERSION, kernels_in_use(), device::instructions_in_use(),
                     base::processor_identity(), arithmetic_environment());
}
[[maybe_unused]] const bool kArithmeticIsNamed = [] {
  control::arithmetic_name = lasting_arithmetic;
  return true;
}();

}  // namespace

std::map<std::string, std::string> arithmetic_in_use(Device device) {
  static const std::string kernels = kernels_in_use();
  static const std::string processor = base::processor_identity();
  const bool onednn = has_onednn() && at::globalContext().userEnabledMkldnn();
  std::map<std::string, std::string> properties = {
      {"threads", threads_in_use()},
      {"onednn", onednn ? "on" : "off"},
      {"flush_denormal", base::flushes_denormals() ? "on" : "off"},
      {"deterministic", deterministic_in_use()},
      {"libtorch", TORCH_VERSION},
      {"instructions", device::instructions_in_use()},
      {"kernels", kernels},
      {"processor", processor},
      {"environment", arithmetic_environment(device)}};
  properties.merge(device_properties(device));
  return properties;
}

namespace {

constexpr std::string_view kNotDeterministic = " does not have a deterministic implementation";

// Errors that pass unchanged, because others say more about them than where they happened.
bool has_own_words(const std::string& said) {
  const std::string_view own[] = {kNotDeterministic,
                                  "can't allocate memory",
                                  "not enough memory",
                                  "out of memory",
                                  "CUDA error",
                                  "CUDNN",
                                  "cuDNN",
                                  "CUBLAS"};
  return std::any_of(std::begin(own), std::end(own),
                     [&](auto words) { return said.find(words) != std::string::npos; });
}

}  // namespace

void forget_cast_weights() {
  const GeneratorTurn turn;
  at::autocast::clear_cache();
}

void say_where(const Where& where, const std::function<void()>& compute) {
  try {
    compute();
  } catch (const c10::Error& error) {
    const std::string said = error.what_without_backtrace();
    if (has_own_words(said)) throw;
    const std::string on = where.step < 0 ? "the test data" : fmt::format("step {}", where.step);
    throw BadInput(fmt::format(
        "the {} fails on {}, shard {}: {}; check that samples and targets are what the model takes",
        where.what, on, where.shard, said.substr(0, said.find('\n'))));
  }
}

void in_plain_words(const std::function<void()>& compute) {
  try {
    compute();
  } catch (const c10::OutOfMemoryError& error) {
    // "CUDA out of memory. Tried to allocate 2 GiB. …": only the first two sentences.
    const std::string said = error.what_without_backtrace();
    const auto second = said.find(". ", said.find(". ") + 1);
    throw Unavailable(fmt::format(
        "no memory is left for the shard's batch: {}; use more shards for the same global batch, a "
        "smaller batch, or more workers",
        said.substr(0, std::min(second, said.find('\n')))));
  } catch (const c10::Error& error) {
    const std::string said = error.what_without_backtrace();
    if (said.starts_with("CUDA error"))
      throw Unavailable(fmt::format("the GPU has failed: {}", said.substr(0, said.find('\n'))));
    const auto after_name = said.find(kNotDeterministic);
    if (after_name == std::string::npos) throw;
    throw BadInput(fmt::format(
        "LibTorch's operator {} is not deterministic: the job would give other bits the next time; "
        "do without it, or allow it (lockstep train: --deterministic off; a program: "
        "at::globalContext().setDeterministicAlgorithms(false, false))",
        said.substr(0, after_name)));
  }
}

}  // namespace lockstep::steps

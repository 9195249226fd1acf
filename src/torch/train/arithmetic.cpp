#include "torch/train/arithmetic.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "base/denormals.h"
#include "base/hash.h"

namespace lockstep::train {
namespace {

// A function of a library that may be there or not.
template <typename Function>
Function* function_named(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

void set_denormals(bool flush) {
  if (base::flushes_denormals() == flush) return;
  if (!base::set_flush_denormals(flush)) {
    throw BadInput(
        "this processor cannot take denormal numbers for zero, as far as Lockstep knows it: use "
        "--flush-denormal off");
  }
  if (auto* end_threads = function_named<int()>("blas_thread_shutdown_")) end_threads();
}

// What the environment said to OpenBLAS when it was loaded is cut to the number of cores; a job's threads are not.
void set_threads(int threads) {
  at::set_num_threads(threads);
  auto* const set_openblas = function_named<void(int)>("openblas_set_num_threads");
  auto* const ask_openblas = function_named<int()>("openblas_get_num_threads");
  if (set_openblas == nullptr || ask_openblas == nullptr) return;
  if (ask_openblas() != threads) set_openblas(threads);
  if (const int got = ask_openblas(); got != threads) {
    throw BadInput(
        fmt::format("OpenBLAS has at most {} threads here, and the job has --threads {}: its "
                    "result would be another one",
                    got, threads));
  }
}

// Newer ones fill fresh memory with NaN besides, to find who reads it too early: a pass over memory for each tensor.
template <typename Context>
void leave_fresh_memory_alone(Context& context) {
  if constexpr (requires { context.setDeterministicFillUninitializedMemory(false); })
    context.setDeterministicFillUninitializedMemory(false);
}

bool changes_arithmetic(std::string_view variable) {
  if (variable.find("VERBOSE") != std::string_view::npos) return false;
  if (variable.find("NUM_THREADS") != std::string_view::npos) return false;  // set_threads() says
  static constexpr std::array<std::string_view, 6> kBeginnings = {
      "DNNL_", "ONEDNN_", "MKL_", "TORCH_MKLDNN_", "OMP_DYNAMIC=", "OMP_THREAD_LIMIT="};
  return std::any_of(kBeginnings.begin(), kBeginnings.end(),
                     [&](std::string_view beginning) { return variable.starts_with(beginning); });
}

}  // namespace

void set_arithmetic(const Arithmetic& choices) {
  set_denormals(choices.flush_denormals);
  set_threads(choices.threads);
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms(choices.deterministic, /*warn_only=*/false);
  leave_fresh_memory_alone(context);
}

bool has_onednn() {
  return at::globalContext().hasMKLDNN();
}

void use_onednn(bool on) {
  if (on && !has_onednn())
    throw BadInput("this LibTorch was built without oneDNN: use --onednn off");
  at::globalContext().setUserEnabledMkldnn(on);
}

std::string kernels_in_use() {
  std::string said = at::show_config();
  for (const char* question : {"openblas_get_config", "openblas_get_corename"}) {
    if (auto* ask = function_named<const char*()>(question)) said += ask();
  }
  return base::to_hex(base::sha256(said)).substr(0, 16);
}

std::string arithmetic_environment() {
  std::vector<std::string> found;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!changes_arithmetic(*variable)) continue;
    found.emplace_back(*variable);
    // It is kept in checkpoints, as text.
    std::replace_if(
        found.back().begin(), found.back().end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  }
  if (found.empty()) return "none";
  std::sort(found.begin(), found.end());
  return fmt::format("{}", fmt::join(found, " "));
}

void name_what_is_not_deterministic(const std::function<void()>& compute) {
  try {
    compute();
  } catch (const c10::Error& error) {
    const std::string said = error.what_without_backtrace();
    const auto after_name = said.find(" does not have a deterministic implementation");
    if (after_name == std::string::npos) throw;
    throw BadInput(fmt::format(
        "LibTorch's operator {} is not deterministic: the job would give other bits the next time; "
        "do without it, or use --deterministic off",
        said.substr(0, after_name)));
  }
}

}  // namespace lockstep::train

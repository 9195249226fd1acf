#include "torch/device/instructions.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <sys/prctl.h>

namespace lockstep::device {
namespace {

std::string of_openblas() {
  auto* const ask = loaded_function<const char*()>("openblas_get_corename");
  return ask == nullptr ? "" : fmt::format(", OpenBLAS {}", ask());
}

// MKL's branch of code, as a number of mkl_service.h.
std::string of_mkl() {
  auto* const ask = loaded_function<int()>("MKL_CBWR_Get_Auto_Branch");
  return ask == nullptr ? "" : fmt::format(", MKL branch {}", ask());
}

// A name, without its "cpu_isa_"; older versions only give a number. On ARM it always says "default".
std::string of_onednn() {
  auto* const ask = loaded_function<int()>("dnnl_get_effective_cpu_isa");
  if (ask == nullptr || !at::globalContext().hasMKLDNN()) return "";
  auto* const name = loaded_function<const char*(int)>("dnnl_cpu_isa2str");
  if (name == nullptr) return fmt::format(", oneDNN {}", ask());
  std::string_view text = name(ask());
  if (constexpr std::string_view kBeginning = "cpu_isa_"; text.starts_with(kBeginning))
    text.remove_prefix(kBeginning.size());
  return fmt::format(", oneDNN {}", text);
}

// The length of ARM's SVE vectors: kernel and process choose it.
std::string of_vectors() {
#if defined(__aarch64__) && defined(PR_SVE_GET_VL)
  const int said = ::prctl(PR_SVE_GET_VL);
  if (said > 0) return fmt::format(", SVE {} bits", (said & PR_SVE_VL_LEN_MASK) * 8);
#endif
  return "";
}

}  // namespace

std::string aten_instructions_in(std::string_view config) {
  constexpr std::string_view kBefore = "CPU capability usage: ";
  const auto found = config.find(kBefore);
  if (found == std::string_view::npos) return "unknown";
  const std::string_view rest = config.substr(found + kBefore.size());
  return std::string(rest.substr(0, rest.find('\n')));
}

const std::string& instructions_in_use() {
  static const std::string said = "ATen " + aten_instructions_in(at::show_config()) +
                                  of_openblas() + of_mkl() + of_onednn() + of_vectors();
  return said;
}

std::string instructions_on(Device device) {
  return device.kind == DeviceKind::kCpu ? instructions_in_use() : "a GPU's";
}

}  // namespace lockstep::device

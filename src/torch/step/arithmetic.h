// What of a process decides the bits that its tensors get: threads, denormals, deterministic operators, oneDNN, the
// libraries below LibTorch. All of it is part of a job.
#pragma once

#include <lockstep/buffer.h>
#include <lockstep/errors.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/mutex.h"

namespace lockstep::steps {

// The choices that are made before anything is computed.
struct Arithmetic {
  int threads = 1;  // OpenMP's and the BLAS's
  bool flush_denormals = false;
  // An operator that may give other bits the next time is refused; cuDNN and attention choose among those that do not.
  bool deterministic = true;
};

// This host cannot do as a property of the job says; the message has no advice.
class CannotDo : public BadInput {
 public:
  CannotDo(std::string its_property, const std::string& message)
      : BadInput(message), property(std::move(its_property)) {}

  std::string property;  // its name in a checkpoint
};

// Once, on the main thread, before any thread that computes is made: those do as the one that makes them. Threads that
// OpenBLAS made when it was loaded are ended, and made again when they are needed.
// CannotDo when this host cannot do as it is told.
void set_arithmetic(const Arithmetic& choices);

// The part of it that LibTorch has switches for: operators that may give other bits the next time are refused, and the
// libraries of GPUs choose among their kernels those that do not. cuBLAS wants CUBLAS_WORKSPACE_CONFIG besides, set before
// the process starts.
void use_deterministic_operators(bool on);

// Whether LibTorch has oneDNN here; then whether it is used. CannotDo when it is wanted and not there.
bool has_onednn();
void use_onednn(bool on);

// CannotDo when LibTorch was built without CUDA.
void require_cuda();

// A name for the code below us: a digest of how LibTorch, OpenBLAS, oneDNN and MKL were built. Two workers with different
// ones may compute different bits.
std::string kernels_in_use();

// The variables that tell those libraries to compute in another way, such as "ONEDNN_MAX_CPU_ISA=AVX2"; else "none". With
// the libraries of GPUs for a job on one: "CUBLAS_WORKSPACE_CONFIG=:4096:8".
std::string arithmetic_environment(Device device = {});

// All of it as it is now, on this thread, set by Lockstep or by the program: properties of a job by name. `device` is
// where the tensors are. Among them are the instructions that the libraries say they use, and the processor's model, by
// which they choose the sizes of blocks and say nothing.
std::map<std::string, std::string> arithmetic_in_use(Device device = {});

// Runs it. BadInput, which names the operator, for LibTorch's refusal of one that is not deterministic; Unavailable
// when a device has no memory left.
void in_plain_words(const std::function<void()>& compute);

// Which of the user's functions runs, and on what.
struct Where {
  const char* what;
  std::int64_t step;  // −1: on the test data
  int shard;
};

// Runs it. What LibTorch refuses in it, such as shapes that do not fit, is BadInput that says where, with the first line
// of LibTorch's text; what it cannot do for lack of memory, and the refusals of in_plain_words(), pass as they are.
void say_where(const Where& where, const std::function<void()>& compute);

// Whether a variable tells the device's libraries to compute in another way. No variable does to the CPU's here.
bool changes_arithmetic_of(Device device, std::string_view variable);

// What the device adds to what decides bits, by name: which it is, such as "cpu" or "cuda NVIDIA H200 sm_90", and on a GPU
// whether its matrix units may round float32 (TF32).
std::map<std::string, std::string> device_properties(Device device);

// Who may use LibTorch's default generator. It belongs to the process, and workers may be threads of one: they take turns
// to seed it and to draw from it.
inline base::Mutex& generator_turn() {
  static base::Mutex mutex;
  return mutex;
}

}  // namespace lockstep::steps

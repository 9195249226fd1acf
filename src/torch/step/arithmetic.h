// The arithmetic of a process: what decides the bits of its tensors. Threads, denormals, deterministic operators, oneDNN,
// the libraries below LibTorch. All of it is part of a job.
#pragma once

#include <lockstep/buffer.h>
#include <lockstep/errors.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::steps {

// The choices that are made before anything is computed.
struct Arithmetic {
  int threads = 1;  // OpenMP's and the BLAS's
  bool flush_denormals = false;
  // Refuses operators that may give other bits the next time. cuDNN and attention choose kernels that do not.
  bool deterministic = true;
};

// This host cannot compute as a property of the job says. The message has no advice: the catcher knows which option it is.
class CannotDo : public BadInput {
 public:
  CannotDo(std::string its_property, const std::string& message)
      : BadInput(message), property(std::move(its_property)) {}

  std::string property;  // its name in a checkpoint
};

// Call it once, on the main thread, before any other thread computes: a new thread takes over how its maker treats
// denormals. OpenBLAS has made threads when it was loaded. They are ended here, and OpenBLAS makes new ones when it needs
// them. CannotDo if this host cannot compute so.
void set_arithmetic(const Arithmetic& choices);

// The part of it that LibTorch has switches for: it refuses operators that may give other bits the next time, and the
// libraries of GPUs choose kernels that do not. For cuBLAS, CUBLAS_WORKSPACE_CONFIG must be set as well, before the
// process starts.
void use_deterministic_operators(bool on);

// Whether LibTorch has oneDNN, and whether to use it. CannotDo if it is wanted and not there.
bool has_onednn();
void use_onednn(bool on);

// CannotDo if LibTorch was built without CUDA.
void require_cuda();

// The environment variables that change how the libraries compute, such as "ONEDNN_MAX_CPU_ISA=AVX2", or "none". For a GPU
// also those of its libraries, such as "CUBLAS_WORKSPACE_CONFIG=:4096:8".
std::string arithmetic_environment(Device device = {});

// The arithmetic as it is now on this thread, set by Lockstep or by the program: properties of a job by name. `device` is where the tensors
// are. The processor's model is among them, because libraries choose block sizes by it and do not say which.
std::map<std::string, std::string> arithmetic_in_use(Device device = {});

// Runs it, and says two errors of LibTorch in plain words: BadInput, with the operator's name, if an operator is not
// deterministic; Unavailable if a device has no memory left.
void in_plain_words(const std::function<void()>& compute);

// Which of the user's functions runs, and on what.
struct Where {
  const char* what;
  std::int64_t step;  // −1: an evaluation
  int shard;
};

// Runs it. If LibTorch refuses something, such as shapes that do not fit: BadInput that says where, with the first line of
// LibTorch's text. Errors for which in_plain_words() has better words, and lack of memory, pass unchanged.
void say_where(const Where& where, const std::function<void()>& compute);

// Whether an environment variable changes how the libraries of a GPU compute; false for the CPU. (device_arithmetic.cpp)
bool changes_arithmetic_of(Device device, std::string_view variable);

// The properties of a device: its model, such as "cpu" or "cuda NVIDIA H200 sm_90", and on a GPU whether its matrix units
// may round float32 (TF32). (device_arithmetic.cpp)
std::map<std::string, std::string> device_properties(Device device);

// Weights have changed: autocast around the loop is to cast them again. In LibTorch 2 one cache serves all threads, so nobody
// runs a forward meanwhile.
void forget_cast_weights();

// The turn to use LibTorch's default generator, which belongs to the process. Workers may be threads of one process: they take
// turns to seed it and to draw from it. A thread may have several: a loss whose turn it is may run a backward pass that draws again, for a
// checkpoint (activation_checkpoint.h).
class [[nodiscard]] GeneratorTurn {
 public:
  GeneratorTurn() { take(); }
  ~GeneratorTurn() { give(); }
  GeneratorTurn(const GeneratorTurn&) = delete;
  GeneratorTurn& operator=(const GeneratorTurn&) = delete;

  // In the middle of a turn, for code that waits for others: ends all turns of this thread, and takes as many again.
  static int put_down() {
    const int turns = held();
    for (int i = 0; i < turns; ++i) give();
    return turns;
  }
  static void take_up(int turns) {
    for (int i = 0; i < turns; ++i) take();
  }

 private:
  static std::recursive_mutex& mutex() {
    static std::recursive_mutex all;
    return all;
  }
  static int& held() {
    thread_local int turns = 0;
    return turns;
  }
  static void take() {
    mutex().lock();
    ++held();
  }
  static void give() {
    --held();
    mutex().unlock();
  }
};

}  // namespace lockstep::steps

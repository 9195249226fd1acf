// What of a process decides the bits that its tensors get: threads, denormals, deterministic operators, oneDNN, the
// libraries below LibTorch. All of it is part of a job.
#pragma once

#include <functional>
#include <string>

namespace lockstep::train {

// The choices that are made before anything is computed.
struct Arithmetic {
  int threads = 1;  // OpenMP's and the BLAS's
  bool flush_denormals = false;
  bool deterministic = true;  // an operator that may give other bits the next time is refused
};

// Once, on the main thread, before any thread that computes is made: those do as the one that makes them. Threads that
// OpenBLAS made when it was loaded are ended, and made anew when they are needed.
// BadInput when this host cannot do as it is told.
void set_arithmetic(const Arithmetic& choices);

// Whether LibTorch has oneDNN here; then whether it is used. BadInput when it is wanted and not there.
bool has_onednn();
void use_onednn(bool on);

// A name for the arithmetic below us: how LibTorch was built and what it found in this processor, and the same of
// OpenBLAS. Two workers with different ones would compute different bits.
std::string kernels_in_use();

// The variables that tell those libraries to compute in another way, such as "ONEDNN_MAX_CPU_ISA=AVX2"; else "none".
std::string arithmetic_environment();

// Runs it. BadInput, which names the operator, for LibTorch's refusal of one that is not deterministic.
void name_what_is_not_deterministic(const std::function<void()>& compute);

}  // namespace lockstep::train

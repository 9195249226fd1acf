// The processor: which one it is, and what it does with the smallest numbers.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::base {

// What libraries choose their code by, besides instruction sets: vendor, family and model on x86-64; implementer, variant
// and part on ARM. Every kind once where cores differ. "unknown" where the kernel does not say.
//
// A job keeps it, because libraries may compute other bits on another processor.
std::string processor_identity();

// The same, out of a text such as /proc/cpuinfo.
std::string processor_identity_in(std::string_view cpuinfo);

// Denormals are numbers too small for the full precision of their type. A thread computes with them, or takes them for
// zero. The switch is in the processor and belongs to a thread; a new thread starts with that of the thread that made
// it, as POSIX says of the floating-point environment. It does not survive exec.

// Whether this thread takes them for zero, both as results and as operands. It multiplies to find out.
bool flushes_denormals() noexcept;

// For this thread and those that it makes. False where the processor, as far as we know it, cannot.
bool set_flush_denormals(bool on) noexcept;

}  // namespace lockstep::base

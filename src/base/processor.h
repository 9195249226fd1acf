// The processor: which one it is, and what it does with the smallest numbers.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::base {

// The properties by which libraries choose their code, besides instruction sets: vendor, family and model on x86-64; implementer,
// variant and part on ARM. If cores differ, each kind once. "unknown" if the kernel does not say.
//
// A job keeps it, because libraries may compute other bits on another processor.
std::string processor_identity();

// The same, out of a text such as /proc/cpuinfo.
std::string processor_identity_in(std::string_view cpuinfo);

// Denormals are numbers too small for the full precision of their type. A thread computes with them, or takes them for
// zero. The switch is in the processor, and each thread has its own. A new thread starts with the switch of the thread
// that made it, as POSIX says of the floating-point environment. exec() resets it.

// Whether this thread takes denormals for zero, both as results and as operands. It multiplies two numbers to find out.
bool flushes_denormals() noexcept;

// Sets the switch for this thread and for those that it makes later. False if this processor has no switch that we
// know.
bool set_flush_denormals(bool on) noexcept;

}  // namespace lockstep::base

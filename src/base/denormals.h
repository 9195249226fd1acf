// Numbers too small for the full precision of their type: whether a thread computes with them or takes them for zero.
// The switch is in the processor and belongs to a thread; a new thread has that of the one that made it, as POSIX says
// of the floating-point environment. It does not survive exec.
#pragma once

namespace lockstep::base {

// Whether this thread takes them for zero, as results and as operands, found out by multiplying.
bool flushes_denormals() noexcept;

// For this thread and those that it makes. False where the processor, as far as we know it, cannot.
bool set_flush_denormals(bool on) noexcept;

}  // namespace lockstep::base

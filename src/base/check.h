// LOCKSTEP_CHECK(condition, "what must hold"): our own bug stops the process, with file and line.
// What the world can do wrong (a peer, a disk, an argument) is an exception of lockstep/errors.h.
#pragma once

namespace lockstep::base {

[[noreturn]] void check_failed(const char* condition, const char* what, const char* file,
                               int line) noexcept;

}  // namespace lockstep::base

#define LOCKSTEP_CHECK(condition, what) \
  (static_cast<bool>(condition)         \
       ? void(0)                        \
       : ::lockstep::base::check_failed(#condition, (what), __FILE__, __LINE__))

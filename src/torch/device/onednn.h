// Where oneDNN helps.
#pragma once

namespace lockstep::device {

// Its convolutions are slow on ARM as Debian builds it. The switch changes bits: it is part of a job.
#if defined(__aarch64__)
inline constexpr bool kOneDnnIsFast = false;
#else
inline constexpr bool kOneDnnIsFast = true;
#endif

}  // namespace lockstep::device

// Whether oneDNN is worth using.
#pragma once

namespace lockstep::device {

// As Debian builds it, its convolutions are slow on ARM. The switch changes bits, so it is part of a job.
#if defined(__aarch64__)
inline constexpr bool kOneDnnIsFast = false;
#else
inline constexpr bool kOneDnnIsFast = true;
#endif

}  // namespace lockstep::device

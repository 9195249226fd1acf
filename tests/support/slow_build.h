// Whether a sanitizer makes everything several times slower: long tests do less then.
#pragma once

namespace lockstep::testing {

#if defined(LOCKSTEP_SANITIZED)
inline constexpr bool kSlowBuild = true;
#else
inline constexpr bool kSlowBuild = false;
#endif

}  // namespace lockstep::testing

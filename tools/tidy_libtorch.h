// Included before everything else when clang-tidy 14 looks at what includes LibTorch 1.13. In GCC 12's library
// std::vector is constexpr in C++20, which makes clang 14 look at the members of std::vector<c10::IValue> where LibTorch
// has only declared IValue. Without constexpr it does so later, as GCC does. Nothing is ever compiled with this.
#include <string>
#if defined(_GLIBCXX20_CONSTEXPR)
#undef _GLIBCXX20_CONSTEXPR
#define _GLIBCXX20_CONSTEXPR
#define __fill_a1 __fill_a1_of_bits  // declared constexpr before, for std::vector<bool>
#include <vector>
#undef __fill_a1
#undef _GLIBCXX20_CONSTEXPR
#define _GLIBCXX20_CONSTEXPR constexpr
#endif

// How every reader here says no: BadInput in one line that names the file, what is wrong with it,
// and what to do.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::formats {

[[noreturn]] void refuse(std::string_view file, std::string_view wrong, std::string_view remedy);

// What came out of a file, fit for one line of a message: control characters and broken bytes
// become \xNN, and what is long is cut.
std::string printable(std::string_view text);

inline constexpr std::string_view kFetchAgain = "copy or download it again";

}  // namespace lockstep::formats

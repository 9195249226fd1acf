// Standard output, of which nothing gets lost silently: a full disk behind it ends in a message and an exit code.
#pragma once

#include <string_view>

namespace lockstep::app {

// Writes and flushes. A failure is remembered: a job of hours goes on, and says it in the end.
void say(std::string_view text) noexcept;

// Unavailable, with the reason, if something that was written to standard output, by anybody in this process, has not
// arrived there.
void check_said();

}  // namespace lockstep::app

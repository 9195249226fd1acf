// Standard output, of which nothing gets lost silently, and for which no job stands still: a full disk behind it ends in a
// message and an exit code; a reader that has stopped reading (Ctrl-S, a full pipe) loses progress lines, not the job.
#pragma once

#include <chrono>
#include <string_view>

namespace lockstep::base {

// How long a result may wait for its reader.
inline constexpr std::chrono::seconds kForAReader{60};

// Writes and flushes. A failure, or a reader that takes nothing for so long, is remembered: a job of hours goes on, and says
// it in the end.
void say(std::string_view text, std::chrono::milliseconds patience = kForAReader) noexcept;

// For progress: dropped, and not remembered, if nobody takes it now.
void say_in_passing(std::string_view text) noexcept;

// Unavailable, with the reason, if something that was written to standard output, by anybody in this process, has not
// arrived there.
void check_said();

}  // namespace lockstep::base

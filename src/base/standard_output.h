// Standard output. Nothing written to it gets lost silently: a full disk behind it ends in a message and an exit code.
// And no job stands still for it: if the reader stops reading (Ctrl-S, a full pipe), progress lines are lost, not the
// job.
#pragma once

#include <chrono>
#include <string_view>

namespace lockstep::base {

// How long a result may wait for its reader.
inline constexpr std::chrono::seconds kForAReader{60};

// Writes and flushes. A failure, or a reader that takes nothing for `patience`, is remembered until check_said(): a job
// of hours goes on.
void say(std::string_view text, std::chrono::milliseconds patience = kForAReader) noexcept;

// For progress: dropped, and not remembered, if nobody takes it now.
void say_in_passing(std::string_view text) noexcept;

// Throws Unavailable, with the reason, if anything that this process wrote to standard output has not arrived.
void check_said();

}  // namespace lockstep::base

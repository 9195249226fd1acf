// What of a process decides the bits of its results, in words, as far as it is known before the program begins. torch/ sets
// the function; join() tells the rendezvous of an elastic job. So a newcomer that computes otherwise, because its libraries
// have been exchanged meanwhile, is refused there by name, and the job goes on.
#pragma once

#include <string>

namespace lockstep::control {

inline std::string (*arithmetic_name)() = nullptr;  // null: nothing of this program computes

}  // namespace lockstep::control

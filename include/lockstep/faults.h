// Faults on purpose, for tests of a program: what `lockstep run --faults` does, from inside.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

// Adds faults to this worker. The list is that of --faults (docs/guide/faults.md): single faults, such as
// "kill@5:1:update", and rates, such as "slow=200ms:0.5/min", separated by commas. Give every worker the same list, before
// the loop: faults of other workers are left out here. The same seed gives the same sequence.
//
//   lockstep::inject_faults("kill@5:1:update,crash=0.01/step", 7);
//
// A worker that replaces another runs the program from its start, and so gets the list again: it has the faults of the
// steps from there on. A fault is said on standard error before it happens.
//
// Threads:   any. Workers that are threads of one process share its faults, and all count as one worker.
// Blocking:  never; the faults themselves may.
// Failure:   BadInput, in one line, for a text that is no list of faults. Nothing is added then.
// Ownership: copies the list. Faults stay until they have happened.
void inject_faults(std::string_view schedule, std::uint64_t seed = 0);

}  // namespace lockstep

// What every worker says, told to every worker, before there is a link between them.
#pragma once

#include <lockstep/bootstrap.h>
#include <lockstep/deadline.h>

#include <string>
#include <vector>

namespace lockstep::comm {

inline constexpr std::size_t kMostSaidBytes = 1024;

// The values of all workers, by rank. Collective: every worker calls it with the same topic, once. The values go through
// rank 0, so that every other worker asks the bootstrap for one value, not for one of each worker.
//
// At most kMostSaidBytes each. Throws what the bootstrap throws; a Timeout, the same on every worker, that names the rank
// that has said nothing; and Mismatch if a value is longer, or rank 0 passes on something else: then it is of another
// build.
std::vector<std::string> said_by_all(Bootstrap& bootstrap, const std::string& topic,
                                     const std::string& own, Deadline deadline);

}  // namespace lockstep::comm

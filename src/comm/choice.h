// Which algorithm a reduction runs by.
#pragma once

#include <lockstep/comm.h>

#include <string>

namespace lockstep::comm {

// What will run when `asked` is asked for, and why.
struct Choice {
  Algorithm algorithm = Algorithm::kDirect;
  std::string how;
};

// `has_native`: the engine has a collective of its own for these workers.
Choice choose(Algorithm asked, int shards, int workers, bool has_native);

}  // namespace lockstep::comm

// For builds without Gloo.
#include <lockstep/errors.h>

#include "bench/allreduce/worker.h"

namespace lockstep::bench {

bool gloo_peer_built() {
  return false;
}

std::unique_ptr<Reducer> make_gloo_peer(const std::string&) {
  throw Unavailable("Gloo was not built: install libgloo-dev and build again");
}

}  // namespace lockstep::bench

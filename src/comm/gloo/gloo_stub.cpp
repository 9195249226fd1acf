#include "comm/gloo/gloo_engine.h"

namespace lockstep::comm {

bool gloo_built() {
  return false;
}

std::shared_ptr<Link> connect_gloo(Bootstrap& /*bootstrap*/, const CommOptions& /*options*/) {
  throw Unavailable("this build has no gloo engine; install libgloo-dev and build again");
}

}  // namespace lockstep::comm

// Every engine that comm/ knows, by name.
#pragma once

#include <lockstep/comm.h>

#include "comm/core/link.h"

namespace lockstep::comm {

// The link of this worker over the named engine; BadInput or Unavailable as lockstep::connect.
std::shared_ptr<Link> connect_link(const std::string& engine, Bootstrap& bootstrap,
                                   const CommOptions& options);

}  // namespace lockstep::comm

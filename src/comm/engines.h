// Every engine that comm/ knows, by name.
#pragma once

#include <lockstep/comm.h>

#include <functional>

#include "comm/core/link.h"

namespace lockstep::comm {

// Told once, on the thread that noticed, why a link ended here. It must neither wait nor throw.
using OnFailure = std::function<void(const Failure&)>;

// The link of this worker over the named engine; BadInput or Unavailable as lockstep::connect.
std::shared_ptr<Link> connect_link(const std::string& engine, Bootstrap& bootstrap,
                                   const CommOptions& options, const OnFailure& on_failure = {});

// As lockstep::connect, with somebody who hears of the Comm's end before the program does.
Comm connect(const std::string& engine, Bootstrap& bootstrap, const CommOptions& options,
             const OnFailure& on_failure);

}  // namespace lockstep::comm

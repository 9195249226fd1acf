// Every engine that comm/ knows, by name.
#pragma once

#include <lockstep/comm.h>

#include <functional>

#include "comm/core/link.h"

namespace lockstep::comm {

// Called once with the reason why a link ended here, on the thread that noticed it. It must neither
// wait nor throw.
using OnFailure = std::function<void(const Failure&)>;

// The link of this worker over the named engine. Throws BadInput or Unavailable as
// lockstep::connect does.
std::shared_ptr<Link> connect_link(const std::string& engine, Bootstrap& bootstrap,
                                   const CommOptions& options, const OnFailure& on_failure = {});

// BadInput, naming the engines, if none has this name.
void check_engine(const std::string& engine);

// As lockstep::connect. `on_failure` learns of the Comm's end before the program does.
Comm connect(const std::string& engine, Bootstrap& bootstrap, const CommOptions& options,
             const OnFailure& on_failure);

// The Comm that rank 0 of a world of so many workers had, when all of them have ended. Collectives
// return at once, as if every worker had said what this one says. share() gives new memory for all
// of them, which can then be made to show the memory that they have left (ArenaBook, Arena::show).
// It neither sends nor reduces shards.
Comm connect_late(int workers);

}  // namespace lockstep::comm

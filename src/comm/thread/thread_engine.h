// The `thread` engine: the workers are threads of one process. For tests, and for replicas in one
// process.
#pragma once

#include <memory>
#include <vector>

#include "comm/core/link.h"

namespace lockstep::comm {

// The links of a world of `size` workers. Element r belongs to rank r.
std::vector<std::shared_ptr<Link>> make_thread_links(int size);

}  // namespace lockstep::comm

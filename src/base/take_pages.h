// Memory that is mapped has no pages until it is written to. To find and zero them one by one takes several times as long
// as to fill them.
#pragma once

#include <cstddef>
#include <span>

namespace lockstep::base {

// Takes the pages behind this memory now, with so many threads. They are zero if they are new, and keep their values if
// not. If the kernel has too few, nothing is said here: the first write to one that is missing says it, as it would have
// without this call.
//
// Threads:   any.
// Blocking:  until the pages are there; 1 GiB takes less than a second.
// Failure:   none.
void take_pages(std::span<std::byte> memory, int threads);

}  // namespace lockstep::base

// A test body under every set of vector instructions that this processor has.
#pragma once

#include <gtest/gtest.h>

#include "comm/core/dispatch.h"

namespace lockstep::testing {

template <typename Body>
void at_every_level(const Body& body) {
  const comm::Level before = comm::level();
  for (const comm::Level level : comm::available_levels()) {
    SCOPED_TRACE(comm::name(level));
    comm::force_level(level);
    body();
  }
  comm::force_level(before);
}

}  // namespace lockstep::testing

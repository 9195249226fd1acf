// A test body under every set of vector instructions that this processor has.
#pragma once

#include <gtest/gtest.h>

#include "flat/dispatch.h"

namespace lockstep::testing {

template <typename Body>
void at_every_level(const Body& body) {
  const flat::Level before = flat::level();
  for (const flat::Level level : flat::available_levels()) {
    SCOPED_TRACE(flat::name(level));
    flat::force_level(level);
    body();
  }
  flat::force_level(before);
}

}  // namespace lockstep::testing

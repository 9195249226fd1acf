// The suite that admits an engine, in several files.
#pragma once

#include <gtest/gtest.h>
#include <lockstep/comm.h>

#include <chrono>
#include <string>

#include "tests/support/workers.h"

namespace lockstep::testing {

class Conformance : public ::testing::TestWithParam<std::string> {
 protected:
  WorldSpec world(int size,
                  std::chrono::milliseconds timeout = std::chrono::milliseconds(20'000)) const {
    return {GetParam(), size, timeout};
  }
};

}  // namespace lockstep::testing

// What a fault must do to those that it did not hit.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "tests/support/workers.h"

namespace lockstep::testing {

// Every worker but the victim ends in time, with this failure, and names the victim.
inline void expect_survivors_end(ProcessWorld& workers, int size, int victim, ErrorKind kind,
                                 std::chrono::milliseconds patience) {
  for (int rank = 0; rank < size; ++rank) {
    if (rank == victim) continue;
    const auto outcome = workers.wait(rank, Deadline::after(patience));
    ASSERT_TRUE(outcome) << "rank " << rank << " hangs";
    EXPECT_EQ(outcome->kind, kind) << outcome->text;
    EXPECT_THAT(outcome->ranks, ::testing::Contains(victim)) << outcome->text;
  }
}

}  // namespace lockstep::testing

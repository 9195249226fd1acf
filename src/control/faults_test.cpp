#include "control/faults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

namespace lockstep::control {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(FaultsTest, AListIsRead) {
  EXPECT_THAT(parse_faults(""), IsEmpty());
  EXPECT_THAT(parse_faults("kill@5:1:update,stop@7:0:forward"),
              ElementsAre(Fault{"kill", 5, 1, "update"}, Fault{"stop", 7, 0, "forward"}));
}

TEST(FaultsTest, WhatIsNoFaultIsNamed) {
  for (const char* text :
       {"kill", "kill@", "kill@5", "kill@5:1", "kill@5:1:", "kill@5:1:lunch", "tickle@5:1:update",
        "kill@-1:1:update", "kill@5:x:update", "kill@5:99999999:update", "kill@5:1:update,,"}) {
    try {
      parse_faults(text);
      ADD_FAILURE() << text << " was accepted";
    } catch (const BadInput& error) {
      EXPECT_THAT(error.what(), HasSubstr("is no fault")) << text;
    }
  }
}

}  // namespace
}  // namespace lockstep::control

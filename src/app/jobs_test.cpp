#include "app/jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

namespace lockstep::app {
namespace {

using testing::HasSubstr;

TEST(JobsTest, ALineHasWhatThereIsAndWhatIsWanted) {
  const control::JobFacts facts{.program = "./train --epochs 3",
                                .workers = 4,
                                .least = 2,
                                .most = 8,
                                .wanted = 6,
                                .generation = 3,
                                .since_s = 1'700'000'000};
  const std::string line = job_line("3fa9", facts);
  for (const char* part : {"3fa9 ", " 4->6 ", " 2:8 ", " 3 ", " 2023-11-1", "./train --epochs 3\n"})
    EXPECT_THAT(line, HasSubstr(part));
  EXPECT_THAT(job_line("3fa9", {.workers = 2, .wanted = 2}), HasSubstr(" fixed "));
}

TEST(JobsTest, WrongArgumentsAreRefused) {
  EXPECT_THROW(resize_job({}), BadInput);
  EXPECT_THROW(resize_job({"a", "b", "3"}), BadInput);
  for (const char* number : {"0", "-1", "x", "4097", "2:8", ""})
    EXPECT_THROW(resize_job({"a", number}), BadInput) << number;
  EXPECT_THROW(stop_job({"a", "b"}), BadInput);
  EXPECT_THROW(list_jobs({"a"}), BadInput);
}

}  // namespace
}  // namespace lockstep::app

#include "control/launch/job_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

namespace lockstep::control {
namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Kind = JobRequest::Kind;

std::string refusal_of(const std::vector<JobName>& jobs, const std::optional<std::string>& text) {
  try {
    find_job(jobs, 1000, text);
  } catch (const BadInput& error) {
    return error.what();
  }
  return "";
}

TEST(JobRequests, ComeBackAsTheyWere) {
  for (const JobRequest& request :
       {JobRequest{}, JobRequest{Kind::kStop}, JobRequest{Kind::kResize, 6}})
    EXPECT_EQ(decode_job_request(encode(request)), request);
}

TEST(JobRequests, WhatIsNoneIsRefused) {
  for (const char* bytes :
       {"", "\n", "describe\n", "lockstep 1 describe", "lockstep 2 describe\n",
        "lockstep 1 describe\nmore", "lockstep 1 resize\n", "lockstep 1 resize -1\n",
        "lockstep 1 resize 99999999999999999999\n", "lockstep 1 resize 1x\n"})
    EXPECT_EQ(decode_job_request(bytes), std::nullopt) << bytes;
}

TEST(JobAnswers, ComeBackInOneLineEach) {
  const JobFacts facts{"./train\n\033[2Jrefused", 4, 2, 8, 6, 3, 1'700'000'000};
  JobAnswer expected{"it is ending", "", facts};
  expected.facts.program = "./train  [2Jrefused";
  EXPECT_EQ(decode_job_answer(encode(JobAnswer{"it is ending", "", facts})), expected);
}

TEST(JobAnswers, WhatIsNoneIsRefused) {
  const std::string whole = encode(JobAnswer{});
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_EQ(decode_job_answer(whole.substr(0, length)), std::nullopt) << length;
  EXPECT_EQ(decode_job_answer(whole + "x"), std::nullopt);
  EXPECT_EQ(decode_job_answer("workers -1\nend \n"), std::nullopt);
  EXPECT_EQ(decode_job_answer("workers 1x\nend \n"), std::nullopt);
  EXPECT_EQ(decode_job_answer(std::string(kMostAnswerBytes, 'a') + " b\nend \n"), std::nullopt);
  EXPECT_TRUE(decode_job_answer("a word of a later version\nend \n"));
}

TEST(JobNames, AreFoundAmongTheSocketsOfTheHost) {
  const std::string sockets =
      "Num       RefCount Protocol Flags    Type St Inode Path\n"
      "0000: 00000002 00000000 00010000 0001 01 1 @lockstep-job-1000-beef\n"
      "0000: 00000003 00000000 00000000 0001 03 2 @lockstep-job-1000-beef\n"
      "0000: 00000002 00000000 00010000 0001 01 3 @lockstep-job-7-3fa9\n"
      "0000: 00000002 00000000 00010000 0001 01 4 /run/lockstep-job-7-aaaa\n"
      "0000: 00000002 00000000 00010000 0001 01 5 @lockstep-job-x-3fa9\n"
      "0000: 00000002 00000000 00010000 0001 01 6 @lockstep-job-7-\n"
      "0000: 00000002 00000000 00010000 0001 01 7 @lockstep-job-7-a/b\n"
      "0000: 00000002 00000000 00010000 0001 01 8\n";
  EXPECT_THAT(jobs_in(sockets), ElementsAre(JobName{7, "3fa9"}, JobName{1000, "beef"}));
  EXPECT_THAT(jobs_in(""), IsEmpty());
  EXPECT_EQ(socket_name({7, "3fa9"}), "lockstep-job-7-3fa9");
}

TEST(JobNames, MayBeCutShort) {
  const std::vector<JobName> jobs = {{1000, "abcd"}, {1000, "abce"}, {1000, "f"}, {1000, "ff"}};
  EXPECT_EQ(find_job(jobs, 1000, "abcd").id, "abcd");
  EXPECT_EQ(find_job(jobs, 1000, "f").id, "f") << "the whole id";
  EXPECT_EQ(find_job({{1000, "abcd"}, {7, "beef"}}, 1000, {}).id, "abcd") << "the only one";
  EXPECT_EQ(refusal_of(jobs, "ab"), "which job? abcd, abce; see `lockstep jobs`");
  EXPECT_THAT(refusal_of(jobs, {}), HasSubstr("which job?"));
  EXPECT_THAT(refusal_of(jobs, "9"), HasSubstr("no job 9 of yours"));
  EXPECT_THAT(refusal_of({}, {}), HasSubstr("no job of yours"));
  EXPECT_THAT(refusal_of({{7, "beef"}}, "beef"), HasSubstr("belongs to user 7"));
}

TEST(JobNames, ATextThatNoIdBeginsWithNeverMeansTheOnlyJob) {
  for (const char* text : {"", " ", "*", "-f", "a b", "a/b", "abcd\n", "\033[2J"}) {
    const std::string refusal = refusal_of({{1000, "abcd"}}, text);
    EXPECT_THAT(refusal, HasSubstr("is no id of a job")) << text;
    EXPECT_THAT(refusal, Not(AnyOf(HasSubstr("\n"), HasSubstr("\033")))) << text;
  }
  EXPECT_THAT(refusal_of({{1000, "abcd"}}, std::string(5000, 'a')), HasSubstr("is no id of a job"));
}

}  // namespace
}  // namespace lockstep::control

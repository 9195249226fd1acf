#include "comm/core/header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <system_error>

#include "comm/core/exchange.h"
#include "comm/core/failure.h"

namespace lockstep::comm {
namespace {

using ::testing::HasSubstr;

Header example() {
  Header header;
  header.kind = Kind::kAllReduce;
  header.dtype = DType::kBFloat16;
  header.op = ReduceOp::kMax;
  header.algorithm = Algorithm::kRing;
  header.detail = 0xdeadbeef;
  header.sequence = 1234567890123;
  header.count = 987654321;
  header.call = CallText("optimizer.step()");
  return header;
}

TEST(HeaderTest, ComesBackFromItsBytes) {
  EXPECT_EQ(decode_header(encode_header(example())), example());
}

TEST(HeaderTest, BytesOfAnotherVersionOrMadeUpOnesAreNoHeader) {
  const HeaderBytes good = encode_header(example());
  for (const std::size_t position : {0UL, 1UL, 4UL, 5UL, 6UL, 7UL, 8UL, 9UL, 10UL, 39UL, 52UL}) {
    HeaderBytes bad = good;
    bad[position] = static_cast<char>(bad[position] ^ 0x7f);
    EXPECT_EQ(decode_header(bad), std::nullopt) << "byte " << position;
  }
  EXPECT_EQ(decode_header(std::span(good).first(20)), std::nullopt);
  EXPECT_EQ(decode_header({}), std::nullopt);
}

TEST(HeaderTest, SaysInWordsWhatIsBeingDone) {
  EXPECT_EQ(describe(example()),
            "optimizer.step() (all_reduce #1234567890123 of 987654321 bfloat16 (max, ring, pieces "
            "deadbeef))");
  Header header;
  header.sequence = 4;
  EXPECT_EQ(describe(header), "barrier #4");
  header.kind = Kind::kBroadcast;
  header.count = 3;
  header.detail = 2;
  EXPECT_EQ(describe(header), "broadcast #4 of 3 uint8 from rank 2");
  header.kind = Kind::kAllReduce;
  header.device = DeviceKind::kCuda;
  header.detail = 0;
  EXPECT_EQ(describe(header), "all_reduce #4 of 3 uint8 on GPUs (sum, automatic)");
  header.kind = Kind::kAllToAll;
  EXPECT_EQ(describe(header), "all_to_all #4 of 3 uint8 on GPUs in all");
  header.detail = 0xbeef;
  EXPECT_EQ(describe(header), "all_to_all #4 of 3 uint8 on GPUs in all (counts 0000beef)");
  EXPECT_EQ(decode_header(encode_header(header)), header);
}

TEST(HeaderTest, ACallIsCutAndMadePrintable) {
  const std::string shape = "all_reduce(float32 [128, 256, 3, ";
  EXPECT_EQ(CallText(shape + "5])").text().size(), CallText::kMost);
  EXPECT_EQ(CallText(shape + "5])"), CallText(shape + "5])"));
  EXPECT_NE(CallText(shape + "5])"), CallText(shape + "7])"));
  EXPECT_EQ(CallText("a\nb\xff").text(), "a?b?");
  EXPECT_TRUE(CallText("").empty());
  EXPECT_EQ(CallText("").digest(), 0u);
  EXPECT_NE(CallText("a call of twenty-eight chars").digest(),
            CallText("a call of twenty-eight char").digest());
}

TEST(HeaderTest, PayloadSlotsDifferWhereverHeadersDo) {
  const Header base = example();
  std::vector<Header> others(8, base);
  others[0].kind = Kind::kReduce;
  others[1].dtype = DType::kFloat16;
  others[2].op = ReduceOp::kMin;
  others[3].algorithm = Algorithm::kTree;
  others[4].detail += 1;
  others[5].sequence += 1;
  others[6].count += 1;
  others[7].call = CallText("backward()");
  const Slot own = payload_slot(8, base, Stage::kOperands);
  EXPECT_EQ(own, payload_slot(8, base, Stage::kOperands));
  EXPECT_NE(own, payload_slot(8, base, Stage::kResults));
  EXPECT_NE(own, payload_slot(16, base, Stage::kOperands));
  EXPECT_EQ(own >> 63, 0u) << "the top bit is the engine's";
  for (const Header& other : others) EXPECT_NE(own, payload_slot(8, other, Stage::kOperands));
}

TEST(HeaderTest, SaysWhoseMemoryItIs) {
  Header header;
  header.kind = Kind::kAllReduce;
  header.device = DeviceKind::kCuda;
  const auto bytes = encode_header(header);
  EXPECT_EQ(decode_header(bytes), header);
  EXPECT_NE(decode_header(bytes), Header{.kind = Kind::kAllReduce});
  EXPECT_NE(describe(header).find("on GPUs"), std::string::npos);
  auto broken = bytes;
  broken[10] = 2;  // no such device
  EXPECT_FALSE(decode_header(broken));
}

TEST(NoticeTest, ComesBackFromItsBytesCutToItsSize) {
  Failure failure{ErrorKind::kMismatch, {1, 3}, std::string(5000, 'x')};
  const std::string bytes = encode_notice(failure);
  EXPECT_EQ(bytes.size(), kNoticeBytes);
  const auto back = decode_notice(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->kind, failure.kind);
  EXPECT_EQ(back->ranks, failure.ranks);
  EXPECT_EQ(back->text, failure.text.substr(0, back->text.size()));
  EXPECT_GT(back->text.size(), 500u);
}

TEST(FailureTest, OnlyALackOfMemoryIsCalledOne) {
  const auto told = [](const std::exception& error) {
    const Failure failure = failure_of(1, error);
    EXPECT_EQ(failure.kind, ErrorKind::kUnavailable);
    EXPECT_EQ(failure.ranks, std::vector<int>{1});
    return failure.text;
  };
  EXPECT_EQ(told(std::bad_alloc()), "rank 1: no memory left");
  EXPECT_EQ(told(Unavailable("this host allows no more threads")),
            "rank 1: this host allows no more threads");
  const std::system_error system(EMFILE, std::generic_category());
  EXPECT_EQ(told(system), std::string("rank 1: ") + system.what());
  EXPECT_THAT(told(std::out_of_range("at(3)")), HasSubstr("a bug in Lockstep"));
  EXPECT_EQ(failure_of(1, PeerLost("rank 2 died", {2})).ranks, std::vector<int>{2});
}

TEST(FailureTest, ABugAsksForAReportHoweverLongItsTextIs) {
  const auto notice = encode_notice(failure_of(1, std::logic_error(std::string(5000, 'x'))));
  EXPECT_THAT(decode_notice(notice)->text, HasSubstr("please report it"));
}

TEST(NoticeTest, GarbageIsNoNotice) {
  EXPECT_FALSE(decode_notice(""));
  EXPECT_FALSE(decode_notice(std::string(kNoticeBytes, '\0')));
  std::string bytes = encode_notice({ErrorKind::kTimeout, {2}, "late"});
  bytes[4] = 9;  // no such kind
  EXPECT_FALSE(decode_notice(bytes));
}

}  // namespace
}  // namespace lockstep::comm

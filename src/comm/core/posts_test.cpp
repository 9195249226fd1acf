#include "comm/core/posts.h"

#include <gtest/gtest.h>

#include "comm/core/message_board.h"

namespace lockstep::comm {
namespace {

// What became of a short send.
Post add_short(Sends& sends) {
  Post post = make_send(1, 7, nullptr, 0);
  sends.add(post);
  sends.to_begin.pop_back();
  return post;
}

TEST(Posts, OneInSoManyShortSendsAsks) {
  Sends sends;
  std::vector<std::uint64_t> asked;
  for (int i = 0; i < 100; ++i) {
    const Post post = add_short(sends);
    if (post.asks) asked.push_back(post.number);
  }
  EXPECT_EQ(asked, (std::vector<std::uint64_t>{32, 64, 96}));
}

TEST(Posts, AfterSoManyBytesAShortSendAsks) {
  Sends sends;
  sends.short_bytes = kShortBytesInARow / 2;
  for (const bool asks : {false, false, true, false, false, true}) {
    Post half = make_send(1, 0, nullptr, sends.short_bytes);
    sends.add(half);
    EXPECT_EQ(half.asks, asks);
  }
}

TEST(Posts, BytesThatAreKnownToHaveBeenReceivedDoNotCount) {
  Sends sends;
  for (int i = 0; i < 1000; ++i) {
    Post card = make_send(1, 0, nullptr, 4160);
    sends.add(card);
    EXPECT_FALSE(card.asks) << i;
    if (i % 16 == 0 && i > 0) sends.received(16);  // one is always on its way
  }
}

TEST(Posts, SendsThatAreKnownToHaveBeenReceivedDoNotCount) {
  Sends sends;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(add_short(sends).asks) << i;
    if (i > 0) sends.received(1);  // the one before
  }
  int most = 0;
  while (!add_short(sends).asks) ++most;
  EXPECT_LT(most, static_cast<int>(kShortInARow)) << "one was not received yet";
}

TEST(Posts, ReceivesOfASlotAreTakenInTheirOrderAndARetiredOneIsLeftOut) {
  PeerPosts posts;
  std::vector<Post> made;
  for (int i = 0; i < 6; ++i) made.push_back(make_recv(1, i % 2, nullptr, 0));
  for (Post& post : made) posts.receives.wanted.push_back(&post);
  posts.retire(made[3]);
  EXPECT_EQ(posts.receives.take_wanted(1), &made[1]);
  EXPECT_EQ(posts.receives.take_wanted(1), &made[5]);
  EXPECT_EQ(posts.receives.take_wanted(1), nullptr);
  EXPECT_EQ(posts.receives.take_wanted(0), &made[0]);
  EXPECT_EQ(posts.receives.take_wanted(2), nullptr);
}

// Where everybody sends to everybody in any case.
TEST(MessageBoards, OnlyShortOperationsBetweenAllTravelOnThem) {
  Header header;
  header.dtype = DType::kFloat32;
  header.count = kCardBytes / 4;
  header.kind = Kind::kAllReduce;
  header.algorithm = Algorithm::kDirect;
  EXPECT_TRUE(travels_on_cards(header, 100));
  header.algorithm = Algorithm::kRing;
  EXPECT_FALSE(travels_on_cards(header, 100));
  for (const Kind kind : {Kind::kAllGather, Kind::kAllToAll}) {
    header.kind = kind;
    EXPECT_TRUE(travels_on_cards(header, 100));
  }
  header.count = kCardBytes / 4 + 1;
  EXPECT_FALSE(travels_on_cards(header, 100));
  header.count = (std::uint64_t{1} << 62) + 1;  // four times that is 4
  EXPECT_FALSE(travels_on_cards(header, 100));
  header.kind = Kind::kBarrier;
  EXPECT_TRUE(travels_on_cards(header, 2));
  EXPECT_FALSE(travels_on_cards(header, 100));
  header.kind = Kind::kBroadcast;
  EXPECT_FALSE(travels_on_cards(header, 2));
}

}  // namespace
}  // namespace lockstep::comm

// The parts of the engine tcp that need no world: headers, tags, places, frames over a socket.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/fd.h"
#include "comm/core/failure.h"
#include "comm/tcp/forming.h"
#include "comm/tcp/tags.h"
#include "comm/tcp/tcp_frame.h"
#include "comm/tcp/tcp_stream.h"

namespace lockstep::comm {
namespace {

using Kind = TcpFrame::Kind;

std::vector<std::byte> bytes_of(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(TcpFrames, AHeaderComesBackAsItWas) {
  const TcpFrame frames[] = {
      {Kind::kMessage, 100, 7, 8, 100},
      {Kind::kMessage, kTcpShortBytesBetweenHosts, 7, 8, kTcpShortBytesBetweenHosts},
      {Kind::kAsk, 0, 1, 2, 1'000'000'000'000},
      {Kind::kGrant, 0, ~0ULL, 2, 3},
      {Kind::kData, 1000, 1, 2, 5000},
      {Kind::kNotice, kNoticeBytes, 0, 0, 0},
      {Kind::kReceipt, 0, 0, 0, 0},
      {Kind::kBeat, 0, 0, 0, 0}};
  for (const TcpFrame& frame : frames) EXPECT_EQ(decode_tcp_header(encode(frame)), frame);
}

TEST(TcpFrames, HeadersThatContradictThemselvesAreNone) {
  const TcpFrame frames[] = {
      {Kind::kMessage, 100, 7, 8, 101},
      {Kind::kMessage, kTcpShortBytesBetweenHosts + 1, 7, 8, kTcpShortBytesBetweenHosts + 1},
      {Kind::kAsk, 1, 1, 2, 3},
      {Kind::kData, 1000, 1, 2, 999},
      {Kind::kData, (256 << 10) + 1, 1, 2, 1 << 30},
      {Kind::kNotice, 10, 0, 0, 0},
      {Kind::kBeat, 4, 0, 0, 0}};
  for (const TcpFrame& frame : frames) EXPECT_EQ(decode_tcp_header(encode(frame)), std::nullopt);
  TcpHeader zeros{};
  EXPECT_EQ(decode_tcp_header(zeros), std::nullopt);
}

TEST(Tags, DependOnTheKeyTheBytesAndTheirNumberAndNotOnParts) {
  const std::string key(kTagKeyBytes, 'k');
  const auto bytes = bytes_of(1000, 1);
  Tagger whole(key);
  Tagger parts(key);
  Tagger other(std::string(kTagKeyBytes, 'o'));
  whole.add(bytes);
  parts.add(std::span(bytes).first(13));
  parts.add(std::span(bytes).subspan(13));
  other.add(bytes);
  const Tag first = whole.finish();
  EXPECT_TRUE(equal(first, parts.finish()));
  EXPECT_FALSE(equal(first, other.finish()));
  whole.add(bytes);
  EXPECT_FALSE(equal(first, whole.finish())) << "the same bytes again, as a replay would be";
}

TEST(Places, ComeBackAsTheyWereAndNoOtherBytesDo) {
  const TcpPlace place{{"10.0.0.1", 4711}, "a host", Wire::kTagged};
  const std::string bytes = encode(place);
  const auto decoded = decode_place(bytes);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->address.host, "10.0.0.1");
  EXPECT_EQ(decoded->address.port, 4711);
  EXPECT_EQ(decoded->wire, Wire::kTagged);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut)
    EXPECT_FALSE(decode_place(bytes.substr(0, cut)));
  EXPECT_FALSE(decode_place(bytes + "x"));
}

// Keeps every frame that was whole.
struct Keeper : FrameSink {
  std::vector<std::byte> memory;
  std::vector<std::pair<TcpFrame, std::vector<std::byte>>> frames;

  std::byte* begin(const TcpFrame& frame) override {
    memory.assign(frame.bytes, std::byte{0});
    return memory.data();
  }
  void end(const TcpFrame& frame) override { frames.emplace_back(frame, memory); }
};

struct Sockets {
  Sockets() {
    int both[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, both), 0);
    a.reset(both[0]);
    b.reset(both[1]);
  }
  base::Fd a;
  base::Fd b;
};

class Streams : public ::testing::TestWithParam<bool> {
 protected:
  static std::optional<Tagger> tagger() {
    return GetParam() ? std::optional<Tagger>(std::string(kTagKeyBytes, 'k')) : std::nullopt;
  }
};

// Longer than the socket takes at a time, so that every part of a frame is cut somewhere.
TEST_P(Streams, FramesArriveWholeWhereverTheyAreCut) {
  const Sockets sockets;
  FrameWriter writer(sockets.a.get(), tagger());
  FrameReader reader(sockets.b.get(), tagger());
  Keeper keeper;
  std::vector<std::vector<std::byte>> sent;
  for (unsigned i = 0; i < 40; ++i) sent.push_back(bytes_of(i % 4 == 0 ? i : i * 6001, i));
  for (const auto& bytes : sent) {
    const auto count = static_cast<std::uint32_t>(bytes.size());
    writer.put({Kind::kData, count, 1, 2, count}, bytes.data());
    while (!writer.idle()) {
      reader.read(keeper);
      writer.flush();
    }
  }
  while (reader.read(keeper) == FrameReader::Result::kSome) continue;
  ASSERT_EQ(keeper.frames.size(), sent.size());
  for (std::size_t i = 0; i < sent.size(); ++i) EXPECT_EQ(keeper.frames[i].second, sent[i]) << i;
}

// Writes some short frames into a socket, and takes their bytes out again.
std::string short_frames(std::optional<Tagger> tagger, unsigned count) {
  const Sockets sockets;
  FrameWriter writer(sockets.a.get(), std::move(tagger));
  for (unsigned i = 0; i < count; ++i) {
    const auto bytes = bytes_of(i * 10, i);
    writer.put({Kind::kMessage, i * 10, i, i, i * 10}, bytes.data());
    EXPECT_TRUE(writer.idle());
  }
  std::string wire(std::size_t{1} << 16, 0);
  wire.resize(static_cast<std::size_t>(::recv(sockets.b.get(), wire.data(), wire.size(), 0)));
  return wire;
}

TEST_P(Streams, FramesThatComeTogetherAreReadTogetherAndInOrder) {
  const std::string wire = short_frames(tagger(), 20);
  const Sockets sockets;
  FrameReader reader(sockets.b.get(), tagger());
  Keeper keeper;
  ASSERT_EQ(::send(sockets.a.get(), wire.data(), wire.size(), 0), static_cast<int>(wire.size()));
  EXPECT_EQ(reader.read(keeper), FrameReader::Result::kSome);
  ASSERT_EQ(keeper.frames.size(), 20U);
  for (unsigned i = 0; i < 20; ++i) {
    EXPECT_EQ(keeper.frames[i].first.slot, i);
    EXPECT_EQ(keeper.frames[i].second, bytes_of(i * 10, i));
  }
  EXPECT_EQ(reader.read(keeper), FrameReader::Result::kNothing);
}

TEST(TaggedStreams, AFlipInAnyOfSeveralFramesIsNoticed) {
  const std::string good = short_frames(Tagger(std::string(kTagKeyBytes, 'k')), 5);
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string wire = good;
    wire[at] = static_cast<char>(wire[at] ^ 4);
    const Sockets sockets;
    FrameReader reader(sockets.b.get(), Tagger(std::string(kTagKeyBytes, 'k')));
    Keeper keeper;
    ASSERT_EQ(::send(sockets.a.get(), wire.data(), wire.size(), 0), static_cast<int>(wire.size()));
    EXPECT_EQ(reader.read(keeper), FrameReader::Result::kForged) << "byte " << at;
    EXPECT_LT(keeper.frames.size(), 5U);
  }
}

// The owner of a send takes its memory back in the middle.
TEST_P(Streams, BytesThatWereKeptAreSentAsTheyWere) {
  const Sockets sockets;
  FrameWriter writer(sockets.a.get(), tagger());
  FrameReader reader(sockets.b.get(), tagger());
  auto bytes = bytes_of(kMostData, 3);
  const auto as_it_was = bytes;
  writer.put({Kind::kData, kMostData, 1, 2, kMostData}, bytes.data());
  ASSERT_FALSE(writer.idle()) << "the socket takes too much for this test";
  writer.keep();
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  Keeper keeper;
  while (!writer.idle()) {
    reader.read(keeper);
    writer.flush();
  }
  while (reader.read(keeper) == FrameReader::Result::kSome) continue;
  ASSERT_EQ(keeper.frames.size(), 1U);
  EXPECT_EQ(keeper.frames[0].second, as_it_was);
}

TEST_P(Streams, AReaderWhoseMemoryIsTakenBackDropsTheRest) {
  const Sockets sockets;
  FrameWriter writer(sockets.a.get(), tagger());
  FrameReader reader(sockets.b.get(), tagger());
  const auto bytes = bytes_of(kMostData, 3);
  writer.put({Kind::kData, kMostData, 1, 2, kMostData}, bytes.data());
  Keeper keeper;
  reader.read(keeper);
  reader.drop();
  const std::vector<std::byte> before = keeper.memory;
  while (!writer.idle()) {
    reader.read(keeper);
    writer.flush();
  }
  writer.put({Kind::kMessage, 3, 5, 6, 3}, bytes.data());
  while (reader.read(keeper) == FrameReader::Result::kSome) continue;
  ASSERT_EQ(keeper.frames.size(), 2U);
  EXPECT_EQ(keeper.frames[1].second.size(), 3U) << "the next frame is not harmed";
}

TEST_P(Streams, AClosedConnectionAndBytesThatAreNoFrameAreTold) {
  Sockets sockets;
  FrameReader reader(sockets.b.get(), tagger());
  Keeper keeper;
  EXPECT_EQ(reader.read(keeper), FrameReader::Result::kNothing);
  const std::string noise(100, 'x');
  ASSERT_EQ(::send(sockets.a.get(), noise.data(), noise.size(), 0), 100);
  EXPECT_EQ(reader.read(keeper),
            GetParam() ? FrameReader::Result::kForged : FrameReader::Result::kBroken);
  const Sockets others;
  FrameReader closed(others.b.get(), tagger());
  ::shutdown(others.a.get(), SHUT_RDWR);
  EXPECT_EQ(closed.read(keeper), FrameReader::Result::kClosed);
}

INSTANTIATE_TEST_SUITE_P(Wire, Streams, ::testing::Bool(),
                         [](const auto& tagged) { return tagged.param ? "tagged" : "plain"; });

}  // namespace
}  // namespace lockstep::comm

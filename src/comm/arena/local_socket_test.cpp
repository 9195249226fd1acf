#include "comm/arena/local_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>

namespace lockstep::comm {
namespace {

auto open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

class LocalSocketTest : public ::testing::Test {
 protected:
  LocalSocketTest() {
    bool exhausted = false;
    near_ = call_locally(listener_.name).socket;
    far_ = accept_locally(listener_.socket.get(), exhausted);
  }

  // Sends bytes with `count` copies of a descriptor, as a stranger may.
  void send_with(std::string bytes, std::size_t count) const {
    iovec part{bytes.data(), bytes.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(16 * sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    const int fd = listener_.socket.get();
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(CMSG_DATA(header) + i * sizeof fd, &fd, sizeof fd);
    }
    ASSERT_GE(::sendmsg(near_.get(), &message, MSG_NOSIGNAL), 0);
  }
  Packet receive(Descriptors descriptors) const {
    return receive_packet(far_.get(), 8, descriptors);
  }

  LocalListener listener_ = listen_locally();
  base::Fd near_;
  base::Fd far_;
};

TEST_F(LocalSocketTest, APacketArrivesWholeWithItsDescriptor) {
  EXPECT_EQ(receive(Descriptors::kTaken).arrival, Arrival::kNothingYet);
  base::Pipe pipe = base::make_pipe();
  ASSERT_TRUE(send_packet(near_.get(), "one"));
  ASSERT_TRUE(send_packet(near_.get(), "two", pipe.write.get()));
  const Packet one = receive(Descriptors::kTaken);
  EXPECT_EQ(one.bytes, "one");
  EXPECT_TRUE(one.descriptors.empty());
  const Packet two = receive(Descriptors::kTaken);
  EXPECT_EQ(two.bytes, "two");
  ASSERT_EQ(two.descriptors.size(), 1U);
  EXPECT_NE(::fcntl(two.descriptors[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_EQ(::write(two.descriptors[0].get(), "x", 1), 1);
  EXPECT_EQ(base::read_exactly(pipe.read.get(), 1, Deadline::after(std::chrono::seconds(1))), "x");
}

TEST_F(LocalSocketTest, BadPacketsEndTheConnectionAndLeaveNoDescriptor) {
  const auto before = open_descriptors();
  send_with("longer than eight", 1);
  EXPECT_EQ(receive(Descriptors::kTaken).arrival, Arrival::kBadPacket);
  send_with("many", 16);
  EXPECT_EQ(receive(Descriptors::kTaken).arrival, Arrival::kBadPacket);
  send_with("", 1);
  EXPECT_EQ(receive(Descriptors::kTaken).arrival, Arrival::kEnd);
  send_with("refused", 1);
  EXPECT_EQ(receive(Descriptors::kRefused).arrival, Arrival::kBadPacket);
  EXPECT_EQ(open_descriptors(), before);
  send_with("two", 2);
  EXPECT_EQ(receive(Descriptors::kTaken).descriptors.size(), 2U);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(LocalSocketTest, WhatWasSentArrivesThoughTheSenderHasLeft) {
  ASSERT_TRUE(send_packet(near_.get(), "last", listener_.socket.get()));
  near_.reset();
  const Packet last = receive(Descriptors::kTaken);
  EXPECT_EQ(last.bytes, "last");
  EXPECT_EQ(last.descriptors.size(), 1U);
  EXPECT_EQ(receive(Descriptors::kTaken).arrival, Arrival::kEnd);
  EXPECT_FALSE(send_packet(far_.get(), "too late"));
}

TEST_F(LocalSocketTest, ACallSaysWhetherSomebodyListens) {
  EXPECT_TRUE(is_of_this_user(near_.get()));
  EXPECT_TRUE(is_of_this_user(far_.get()));
  std::vector<base::Fd> waiting;
  CallResult result = call_locally(listener_.name);
  while (result.call == Call::kConnected && waiting.size() < 1000) {
    waiting.push_back(std::move(result.socket));
    result = call_locally(listener_.name);
  }
  EXPECT_EQ(result.call, Call::kBusy) << "nobody accepts";
  listener_.socket.reset();
  EXPECT_EQ(call_locally(listener_.name).call, Call::kNobody);
}

}  // namespace
}  // namespace lockstep::comm

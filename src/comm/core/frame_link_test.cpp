// Two links in one process, over wires of this test's own, which carry short messages, notices and receipts.
#include "comm/core/frame_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::comm::frame_link {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;

struct Frame {
  enum class Kind { kMessage, kNotice, kReceipt };
  Kind kind = Kind::kMessage;
  Slot slot = 0;
  std::uint64_t number = 0;
  std::vector<std::byte> bytes = {};
};

class Wire {
 public:
  void put(Frame frame) {
    const std::scoped_lock lock(mutex_);
    frames_.push_back(std::move(frame));
  }
  std::optional<Frame> take() {
    const std::scoped_lock lock(mutex_);
    if (frames_.empty()) return std::nullopt;
    Frame frame = std::move(frames_.front());
    frames_.pop_front();
    return frame;
  }

 private:
  std::mutex mutex_;
  std::deque<Frame> frames_;
};

class TestPeer : public FramePeer {
 public:
  TestPeer(int rank, Wire& in, Wire& out) : FramePeer(rank), in_(in), out_(out) {}
  bool told() const override { return news_.receipt_came; }

  bool move() {
    bool moved = false;
    for (; auto frame = in_.take(); moved = true) take(std::move(*frame));
    if (!news_.notice.empty()) {
      const std::string notice = std::exchange(news_.notice, {});
      const auto* const bytes = reinterpret_cast<const std::byte*>(notice.data());
      out_.put({.kind = Frame::Kind::kNotice, .bytes = {bytes, bytes + notice.size()}});
    }
    if (std::exchange(news_.receipt_due, false)) out_.put({.kind = Frame::Kind::kReceipt});
    for (auto& sends = posts().sends.to_begin; !sends.empty(); moved = true) {
      Post& post = *sends.front();
      sends.pop_front();
      out_.put(
          {Frame::Kind::kMessage, post.slot, post.number, {post.data, post.data + post.bytes}});
      post.state = PostState::kDone;
    }
    return moved;
  }

 private:
  void take(Frame frame) {
    if (frame.kind == Frame::Kind::kReceipt) {
      news_.receipt_came = true;
    } else if (frame.kind == Frame::Kind::kNotice) {
      take_notice({reinterpret_cast<const char*>(frame.bytes.data()), frame.bytes.size()});
    } else {
      EarlyMessage message{frame.number, frame.bytes.size(), false, std::move(frame.bytes)};
      if (Post* const post = posts().receives.take_wanted(frame.slot))
        posts().match(*post, std::move(message));
      else
        posts().receives.arrived.emplace(frame.slot, std::move(message));
    }
  }
  Wire& in_;
  Wire& out_;
};

// Of three workers only the first two are there.
class TestLink final : public FrameLink {
 public:
  TestLink(int rank, Wire& in, Wire& out) : FrameLink(rank, 3), other_(1 - rank, in, out) {
    start_tending();
  }
  ~TestLink() override {
    fail(left_world());
    stop_tending();
  }

  std::string engine() const override { return "test"; }
  void fail(const Failure& failure) noexcept override {
    const base::Lock lock(mutex_);
    fail_locked(failure);
  }

  // What a driver does in place of looking for frames.
  enum class Driver { kLooks, kSleeps, kThrows };
  std::atomic<Driver> driver{Driver::kLooks};
  std::atomic<int> drivers{0};

 private:
  FramePeer* peer(int rank) const noexcept override LOCKSTEP_REQUIRES(mutex_) {
    return rank == other_.rank() ? &other_ : nullptr;
  }
  bool push(int) noexcept override LOCKSTEP_REQUIRES(mutex_) {
    const bool moved = other_.move();
    hear(other_);
    return moved;
  }
  void look(const Post&) override LOCKSTEP_REQUIRES(mutex_) {
    if (push(other_.rank())) spread_news();
  }
  void drive(const Post& post, Deadline deadline) override LOCKSTEP_REQUIRES(mutex_) {
    EXPECT_EQ(++drivers, 1) << "one at a time";
    while (!over(post) && !deadline.expired() && driver != Driver::kThrows) {
      if (driver == Driver::kLooks) look(post);
      const base::Unlock unlocked(mutex_);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    --drivers;
    if (driver == Driver::kThrows) throw std::runtime_error("the test's own");
  }
  void await_told(Deadline deadline) noexcept override LOCKSTEP_REQUIRES(mutex_) {
    while (!all_told() && !deadline.expired()) {
      push(other_.rank());
      const base::Unlock unlocked(mutex_);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  void tend() override {
    base::Lock lock(mutex_);
    while (!stopping()) {
      if (!driving()) push(other_.rank());
      nap(lock, Deadline::Clock::now() + milliseconds(1));
    }
  }

  mutable TestPeer other_ LOCKSTEP_GUARDED_BY(mutex_);
};

class FrameLinks : public testing::Test {
 protected:
  static Deadline soon() { return Deadline::after(milliseconds(20'000)); }
  static Deadline past() { return Deadline::after(milliseconds(0)); }

  void send(Slot slot, int value) {
    const auto sent = first_->send(1, slot, &value, sizeof value);
    EXPECT_TRUE(sent->wait(soon()));
  }
  std::unique_ptr<Transfer> receive(Slot slot, int& value) {
    return second_->recv(0, slot, &value, sizeof value);
  }
  void await_driver() const {
    while (second_->drivers == 0) std::this_thread::yield();
  }

  Wire there_, back_;
  std::shared_ptr<TestLink> first_ = std::make_shared<TestLink>(0, back_, there_);
  std::shared_ptr<TestLink> second_ = std::make_shared<TestLink>(1, there_, back_);
};

TEST_F(FrameLinks, DeliverWhatIsExpectedAndWhatIsNot) {
  int early = 0;
  int late = 0;
  const auto expected = receive(1, early);
  send(1, 11);
  send(2, 22);
  EXPECT_TRUE(expected->wait(soon()));
  EXPECT_TRUE(receive(2, late)->wait(soon()));
  EXPECT_THAT((std::vector{early, late}), ElementsAre(11, 22));
}

TEST_F(FrameLinks, OneThreadDrivesForAllThatWait) {
  constexpr int kThreads = 4;
  std::vector<int> values(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const auto transfer = receive(static_cast<Slot>(i), values[static_cast<std::size_t>(i)]);
      EXPECT_TRUE(transfer->wait(soon()));
    });
  }
  for (int i = kThreads; i-- > 0;) send(static_cast<Slot>(i), 10 + i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(values, ElementsAre(10, 11, 12, 13));
}

TEST_F(FrameLinks, WhenTheDriverHasItsMessageAnotherThreadDrives) {
  int first = 0;
  int second = 0;
  std::thread driver([&] { EXPECT_TRUE(receive(1, first)->wait(soon())); });
  await_driver();
  std::thread other([&] { EXPECT_TRUE(receive(2, second)->wait(soon())); });
  send(1, 1);
  driver.join();
  send(2, 2);
  other.join();
  EXPECT_EQ(second, 2);
}

TEST_F(FrameLinks, ADriverThatThrowsLeavesTheDriveToOthers) {
  int value = 0;
  const auto transfer = receive(1, value);
  second_->driver = TestLink::Driver::kThrows;
  EXPECT_THROW(transfer->wait(soon()), std::runtime_error);
  second_->driver = TestLink::Driver::kLooks;
  send(1, 5);
  EXPECT_TRUE(transfer->wait(soon()));
}

TEST_F(FrameLinks, AWaitWhoseDeadlineHasPassedLooksOnce) {
  int never = 0;
  int value = 0;
  const auto missing = receive(1, never);
  second_->driver = TestLink::Driver::kSleeps;
  std::thread driver([&] { EXPECT_FALSE(missing->wait(soon())); });
  await_driver();
  const auto transfer = receive(2, value);
  EXPECT_FALSE(transfer->wait(past()));
  send(2, 7);
  EXPECT_TRUE(transfer->wait(past())) << "another thread drives, and does not look";
  missing->cancel();
  driver.join();
}

TEST_F(FrameLinks, AReasonReachesThePeerAndEndsWhatWaitsForIt) {
  int value = 0;
  const auto transfer = receive(1, value);
  first_->tell({ErrorKind::kUnavailable, {0}, "no memory left"});
  EXPECT_THROW(transfer->wait(soon()), Unavailable);
  EXPECT_EQ(second_->heard_from(0, soon())->text, "no memory left");
  EXPECT_EQ(second_->end_of(0)->text, "no memory left");
  EXPECT_FALSE(second_->failure()) << "the link itself goes on";
}

TEST_F(FrameLinks, APeerThatGivesUpHearsForWhomThisWorkerWaits) {
  second_->waits_for(2);
  first_->tell({ErrorKind::kTimeout, {1}, "rank 1 is silent"});
  const auto heard = first_->heard_from(1, soon());
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->text, waiting_failure(1, 2, true).text);
}

TEST_F(FrameLinks, ALinkThatHasEndedSaysSoOnEveryCall) {
  int value = 0;
  const auto before = receive(1, value);
  second_->fail({ErrorKind::kPeerLost, {1}, "it is over"});
  EXPECT_THROW(before->wait(soon()), PeerLost);
  EXPECT_THROW(receive(2, value)->wait(soon()), PeerLost);
  EXPECT_THROW(second_->send(0, 3, &value, sizeof value)->wait(soon()), PeerLost);
  EXPECT_EQ(second_->failure()->text, "it is over");
}

}  // namespace
}  // namespace lockstep::comm::frame_link

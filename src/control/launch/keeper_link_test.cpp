#include "control/launch/keeper_link.h"

#include <gtest/gtest.h>
#include <lockstep/deadline.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace lockstep::control {
namespace {

using KeeperSays = KeeperEvent::Kind;

// A keeper whose side the test plays.
class KeeperLinks : public ::testing::Test {
 protected:
  KeeperLinks() {
    base::Pipe events = base::make_pipe();
    base::Pipe lifeline = base::make_pipe();
    events_ = std::move(events.write);
    orders_ = std::move(lifeline.read);
    link_.emplace(context_, Keeper{-1, std::move(events.read), std::move(lifeline.write)},
                  std::chrono::milliseconds(500));
    link_->when_event = [this](const KeeperEvent& event) { heard_.push_back(event); };
    link_->when_gone = [] {};
    link_->when_stuck = [this](int, pid_t pid) { stuck_.push_back(pid); };
    link_->start();
  }

  void say(KeeperSays kind, int worker, int pid) {
    const KeeperEvent event{kind, worker, pid, 0};
    ASSERT_EQ(::write(events_.get(), &event, sizeof event), static_cast<ssize_t>(sizeof event));
  }
  template <typename Condition>
  bool run_until(const Condition& condition) {
    for (const Deadline deadline = Deadline::after(std::chrono::seconds(20));
         !deadline.expired();) {
      context_.run_for(std::chrono::milliseconds(1));
      if (condition()) return true;
    }
    return false;
  }
  bool run_until_heard(std::size_t events) {
    return run_until([&] { return heard_.size() >= events; });
  }
  int ends_of(int worker) const {
    return static_cast<int>(std::count_if(heard_.begin(), heard_.end(), [&](const auto& event) {
      return event.kind == KeeperSays::kEnded && event.rank == worker;
    }));
  }

  boost::asio::io_context context_;
  base::Fd events_;
  base::Fd orders_;
  std::optional<KeeperLink> link_;
  std::vector<KeeperEvent> heard_;
  std::vector<pid_t> stuck_;
};

TEST_F(KeeperLinks, AWorkerThatDoesNotEndCountsAsEndedAndItsEndIsLeftOut) {
  say(KeeperSays::kStarted, 1, 100);
  ASSERT_TRUE(run_until_heard(1));
  link_->send({KeeperOrder::Kind::kKill, 1});
  ASSERT_TRUE(run_until_heard(3));
  EXPECT_EQ(ends_of(1), 1);
  EXPECT_EQ(stuck_, std::vector<pid_t>{100});
  EXPECT_EQ(heard_.back().kind, KeeperSays::kAllReported);
  // Its replacement has the same place.
  say(KeeperSays::kStarted, 1, 101);
  say(KeeperSays::kEnded, 1, 100);
  say(KeeperSays::kAllReported, -1, 0);
  ASSERT_TRUE(run_until_heard(5));
  EXPECT_EQ(ends_of(1), 1) << "the end of the first process is not that of the second";
  say(KeeperSays::kEnded, 1, 101);
  ASSERT_TRUE(run_until_heard(6));
  EXPECT_EQ(ends_of(1), 2);
}

TEST_F(KeeperLinks, AWorkerThatEndsInTimeIsHeardOfOnce) {
  say(KeeperSays::kStarted, 1, 100);
  ASSERT_TRUE(run_until_heard(1));
  say(KeeperSays::kEnded, 1, 100);
  link_->send({KeeperOrder::Kind::kKill, 1});
  link_->send({KeeperOrder::Kind::kKill, 1});
  ASSERT_TRUE(run_until_heard(2));
  const Deadline later = Deadline::after(std::chrono::milliseconds(700));
  ASSERT_TRUE(run_until([&] { return later.expired(); }));
  EXPECT_EQ(ends_of(1), 1);
  EXPECT_TRUE(stuck_.empty());
}

TEST_F(KeeperLinks, NobodyIsGivenUpThatDoesNotRun) {
  link_->send({KeeperOrder::Kind::kKill, 1});
  say(KeeperSays::kStarted, 2, 100);
  const Deadline later = Deadline::after(std::chrono::milliseconds(700));
  ASSERT_TRUE(run_until([&] { return later.expired(); }));
  EXPECT_EQ(ends_of(1), 0);
  EXPECT_EQ(ends_of(2), 0);
}

}  // namespace
}  // namespace lockstep::control

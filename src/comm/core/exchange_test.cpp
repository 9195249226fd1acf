#include "comm/core/exchange.h"

#include <gtest/gtest.h>

namespace lockstep::comm {
namespace {

// A link that notes whom its worker waits for.
class NotedLink : public Link {
 public:
  int rank() const override { return 0; }
  int size() const override { return 3; }
  std::string engine() const override { return "test"; }
  std::unique_ptr<Transfer> send(int, Slot, const void*, std::size_t) override { return nullptr; }
  std::unique_ptr<Transfer> recv(int, Slot, void*, std::size_t) override { return nullptr; }
  void fail(const Failure&) noexcept override {}
  std::optional<Failure> failure() const override { return std::nullopt; }
  void tell(const Failure&) noexcept override {}
  std::optional<Failure> heard_from(int, Deadline) noexcept override { return std::nullopt; }
  void waits_for(int peer) noexcept override {
    whom = peer;
    had_to_wait = had_to_wait || peer != kNoRank;
  }

  int whom = kNoRank;
  bool had_to_wait = false;
};

// A board on which the others come when they are waited for, with the same card.
class SlowBoard : public Board {
 public:
  BoardCard& blank() override { return card_; }
  void pin(std::size_t /*bytes*/) override {}
  void prepare(std::size_t) override {}
  bool await(int, Deadline) override { return true; }
  bool has_come(int) override { return false; }
  bool comes_at_once(int) override { return false; }
  const BoardCard& card(int) const override { return card_; }

 private:
  BoardCard card_{};
};

TEST(ExchangeTest, WaitsForNobodyOnceAllHaveCome) {
  NotedLink link;
  SlowBoard board;
  Scratch scratch;
  const int members[] = {0, 1, 2};
  Exchange exchange({.link = link, .members = members, .scratch = scratch, .board = &board},
                    Header{}, Deadline::after(std::chrono::seconds(10)));
  exchange.begin({});
  exchange.await_all();
  EXPECT_TRUE(link.had_to_wait);
  EXPECT_EQ(link.whom, kNoRank);
}

}  // namespace
}  // namespace lockstep::comm

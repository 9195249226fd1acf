#include "comm/shm/shm_board.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;

constexpr std::uint32_t kSmallRing = 4096;

// Two workers in one process.
class Pair {
 public:
  Pair() {
    for (int rank = 0; rank < 2; ++rank) {
      auto& boards = boards_[static_cast<std::size_t>(rank)];
      boards.emplace(BoardSetting{{&segments_[0], &segments_[1]}, rank, {1, {}}, [](int) {
                                    return std::optional<Failure>();
                                  }});
    }
  }
  std::unique_ptr<Board> board_of(int rank) {
    return boards_[static_cast<std::size_t>(rank)]->make(7, std::array{0, 1});
  }
  SegmentHead& head_of(int rank) { return segments_[static_cast<std::size_t>(rank)].head(); }
  BoardEntry& entry_of(int rank) {
    return segments_[static_cast<std::size_t>(rank)].board_entry(0);
  }

 private:
  static Segment segment() {
    return {Arena::create(Segment::bytes_for(2, kSmallRing)), 2, kSmallRing};
  }

  std::array<Segment, 2> segments_{segment(), segment()};
  std::array<std::optional<Boards>, 2> boards_;
};

void await_sleeper(const Doorbell& bell) {
  while (bell.sleeping.load() == 0) std::this_thread::yield();
}

TEST(ShmBoard, AMemberThatComesWakesASleeper) {
  Pair pair;
  const auto mine = pair.board_of(0);
  const auto theirs = pair.board_of(1);
  mine->pin(0);
  std::thread other([&] {
    await_sleeper(pair.head_of(0).board_bell);
    theirs->pin(0);
  });
  EXPECT_TRUE(mine->await(1, Deadline::after(std::chrono::seconds(30))));
  other.join();
}

TEST(ShmBoard, AMemberThatHasComeIsFoundAfterTheDeadline) {
  Pair pair;
  const auto mine = pair.board_of(0);
  const auto theirs = pair.board_of(1);
  theirs->pin(0);
  mine->pin(0);
  EXPECT_TRUE(mine->await(1, Deadline::after(milliseconds(0))));
}

// Between its round and its bell. Whoever woke at the deadline and took it for one that has come
// would have no time left, and blame the next one that it waits for.
TEST(ShmBoard, AMemberThatIsStoppedBeforeItRingsIsLate) {
  Pair pair;
  const auto mine = pair.board_of(0);
  const auto theirs = pair.board_of(1);
  mine->pin(0);
  std::thread other([&] {
    await_sleeper(pair.head_of(0).board_bell);
    std::this_thread::sleep_for(milliseconds(20));
    pair.entry_of(1).round.store(1);
  });
  EXPECT_FALSE(mine->await(1, Deadline::after(milliseconds(500))));
  other.join();
}

}  // namespace
}  // namespace lockstep::comm

#include "control/rendezvous/estate.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

namespace lockstep::control {
namespace {

base::Fd memory_with(const std::string& text) {
  base::Fd memory(::memfd_create("estate-test", MFD_CLOEXEC));
  EXPECT_EQ(::write(memory.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  return memory;
}

std::string text_in(const base::Fd& memory) {
  std::string text(64, '\0');
  const ssize_t got = ::pread(memory.get(), text.data(), text.size(), 0);
  text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return text;
}

// A keeper and its workers. fetch() wants a keeper that answers meanwhile.
struct Pair {
  EstateKeeper keeper;

  Estate start_worker() {
    const base::Fd end = keeper.open();
    return Estate(end.get());
  }
  std::vector<HeldItem> fetch(const Estate& worker) {
    std::vector<HeldItem> items;
    std::atomic<bool> done = false;
    std::thread asks([&] {
      items = worker.fetch();
      done = true;
    });
    while (!done) {
      keeper.serve();
      std::this_thread::yield();
    }
    asks.join();
    return items;
  }
};

TEST(Estates, OutliveTheWorkersThatGaveThem) {
  Pair pair;
  {
    const Estate first = pair.start_worker();
    const Estate second = pair.start_worker();
    EXPECT_TRUE(first.give({7, 1, 0, 0, 4}, memory_with("zero").get()));
    EXPECT_TRUE(second.give({7, 1, 1, 0, 3}, memory_with("one").get()));
    EXPECT_TRUE(first.seal(7));
  }
  const Estate late = pair.start_worker();
  const auto items = pair.fetch(late);
  ASSERT_EQ(items.size(), 2U);
  for (const auto& [item, memory] : items) {
    EXPECT_EQ(item.set, 7U);
    EXPECT_EQ(text_in(memory), item.rank == 0 ? "zero" : "one");
  }
}

TEST(Estates, ASetCountsFromItsSealOn) {
  Pair pair;
  const Estate worker = pair.start_worker();
  worker.give({7, 1, 0, 0, 3}, memory_with("old").get());
  EXPECT_TRUE(pair.fetch(worker).empty()) << "nobody has said that it is whole";
  worker.seal(7);
  worker.give({8, 1, 0, 0, 3}, memory_with("new").get());
  ASSERT_EQ(pair.fetch(worker).size(), 1U);
  EXPECT_EQ(text_in(pair.fetch(worker)[0].memory), "old");
  worker.seal(8);
  ASSERT_EQ(pair.fetch(worker).size(), 1U);
  EXPECT_EQ(text_in(pair.fetch(worker)[0].memory), "new");
  worker.drop();
  EXPECT_TRUE(pair.fetch(worker).empty());
}

TEST(Estates, ASetThatWasNeverWholeIsForgotten) {
  Pair pair;
  const Estate worker = pair.start_worker();
  worker.give({7, 1, 0, 0, 3}, memory_with("old").get());
  worker.give({8, 1, 0, 0, 3}, memory_with("new").get());
  worker.seal(7);
  EXPECT_TRUE(pair.fetch(worker).empty());
}

// A keeper that has not run for a while hears one worker's words after another's: those of a generation that has ended
// come behind those of the next one.
TEST(Estates, WhatAWorkerSaidLongAgoTakesNothingFromTheNextSet) {
  Pair pair;
  const Estate first = pair.start_worker();
  const Estate second = pair.start_worker();
  for (const std::uint64_t set : {7, 8}) {
    first.give({set, 1, 0, 0, 4}, memory_with("zero").get());
    second.give({set, 1, 1, 0, 3}, memory_with("one").get());
    if (set == 7) first.seal(set);
  }
  pair.keeper.serve();
  first.seal(8);
  EXPECT_EQ(pair.fetch(first).size(), 2U);
}

TEST(Estates, AreGivenOutAFewTimesOnly) {
  Pair pair;
  const Estate worker = pair.start_worker();
  worker.give({7, 1, 0, 0, 3}, memory_with("bad").get());
  worker.seal(7);
  int times = 0;
  while (!pair.fetch(worker).empty() && times < 100) ++times;
  EXPECT_EQ(times, 5);
}

TEST(Estates, WithoutAKeeperNothingHappens) {
  const Estate none(std::nullopt);
  EXPECT_FALSE(none.is_there());
  EXPECT_FALSE(none.give({7, 1, 0, 0, 3}, memory_with("old").get()));
  EXPECT_TRUE(none.fetch().empty());
  base::Pipe pipe = base::make_pipe();
  EXPECT_FALSE(Estate(pipe.read.get()).is_there()) << "the program has another file there";
  base::Fd end;
  {
    EstateKeeper keeper;
    end = keeper.open();
  }
  const Estate gone(end.get());
  EXPECT_FALSE(gone.give({7, 1, 0, 0, 3}, memory_with("old").get()));
  EXPECT_TRUE(gone.fetch().empty());
}

TEST(Estates, WhatIsNoMessageIsIgnored) {
  Pair pair;
  const base::Fd end = pair.keeper.open();
  const Estate worker(end.get());
  worker.give({7, 1, 0, 0, 3}, memory_with("old").get());
  worker.seal(7);
  EXPECT_EQ(::write(end.get(), "hello", 5), 5);
  EXPECT_EQ(::write(end.get(), std::string(4096, 'x').data(), 64), 64);
  EXPECT_EQ(pair.fetch(worker).size(), 1U);
}

}  // namespace
}  // namespace lockstep::control

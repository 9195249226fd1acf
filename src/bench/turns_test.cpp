#include "bench/turns.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "bench/rounds.h"

namespace lockstep::bench {
namespace {

// Writes the letter of its system twice in each of its turns.
[[noreturn]] void work(const TurnGiver& giver, std::size_t system, int rank, int out) {
  for (const auto& [name, value] : giver.variables(system))
    ::setenv(name.c_str(), value.c_str(), 1);
  ::setenv("RANK", std::to_string(rank).c_str(), 1);
  const char name = static_cast<char>('a' + system);
  TurnTaker taker;
  while (taker.wait()) {
    for (int i = 0; i < 2; ++i) {
      if (::write(out, &name, 1) != 1) ::_exit(2);
      ::usleep(1000);
    }
  }
  ::_exit(0);
}

// What the workers have written, in order.
std::string written_in_turns(const std::vector<int>& workers, int turns) {
  TurnGiver giver(workers, turns);
  base::Pipe out = base::make_pipe();
  int running = 0;
  for (std::size_t system = 0; system < workers.size(); ++system) {
    for (int rank = 0; rank < workers[system]; ++rank, ++running) {
      if (::fork() == 0) work(giver, system, rank, out.write.get());
    }
  }
  while (running > 0) {
    pollfd entry{giver.fd(), POLLIN, 0};
    if (::poll(&entry, 1, 10) == 1) giver.readable();
    int status = 0;
    while (::waitpid(-1, &status, WNOHANG) > 0) {
      EXPECT_EQ(status, 0);
      --running;
    }
  }
  out.write.reset();
  std::string text;
  char byte = 0;
  while (::read(out.read.get(), &byte, 1) == 1) text += byte;
  return text;
}

TEST(BenchTurns, OneSystemAtATimeRunsAndEachGetsItsTurns) {
  EXPECT_EQ(written_in_turns({2, 1, 3}, 2), "aaaabbccccccaaaabbcccccc");
}

TEST(BenchTurns, ASystemThatEndsEarlyHoldsUpNobody) {
  std::vector<std::string> seen(2);
  const auto take = [&](std::size_t i, const auto& lines) { seen[i] = lines.front(); };
  // The first never asks for a turn.
  const std::string second =
      "read pid system turns say go <<EOF\n$LOCKSTEP_BENCH_TURNS\nEOF\n"
      "for i in 1 2 3; do printf '\\001' > /proc/$pid/fd/$say;"
      " head -c 1 /proc/$pid/fd/$go; done; echo; echo '{\"ok\":1}'";
  testing::internal::CaptureStderr();
  const RoundsEnd end = run_rounds(
      {{"ends", false, "", {"false"}, {}, 1}, {"good", true, "", {"bash", "-c", second}, {}, 1}},
      {1, std::chrono::seconds(20), 2}, TakeRun(take));
  testing::internal::GetCapturedStderr();
  EXPECT_TRUE(end.good);
  EXPECT_EQ(end.failed, (std::vector<bool>{true, false}));
  EXPECT_EQ(seen[1], "{\"ok\":1}");
}

TEST(BenchTurns, AWorkerWithoutACommandTakesOneTurn) {
  TurnTaker alone;
  EXPECT_EQ(alone.turns(), 1);
  EXPECT_TRUE(alone.wait());
  EXPECT_FALSE(alone.wait());
}

}  // namespace
}  // namespace lockstep::bench

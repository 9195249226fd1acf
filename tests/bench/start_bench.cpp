// How long does it take to start? A program that does nothing, by the shell and by `lockstep run`;
// and N workers that join a world, meet once and end, launcher's start and end included.
//
//   start_bench LOCKSTEP JOIN_PROBE
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

// Wall-clock milliseconds of a command; ends the benchmark when it fails.
double run_ms(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const auto begun = Clock::now();
  pid_t process = 0;
  int status = -1;
  if (::posix_spawnp(&process, arguments[0], nullptr, nullptr, arguments.data(), environ) == 0) {
    ::waitpid(process, &status, 0);
  }
  if (status != 0) {
    fmt::print(stderr, "{} failed with status {}\n", command[0], status);
    std::exit(1);
  }
  return std::chrono::duration<double, std::milli>(Clock::now() - begun).count();
}

struct Spread {
  double median = 0;
  double least = 0;
  double most = 0;
};

Spread repeat(int times, const std::vector<std::string>& command) {
  std::vector<double> all;
  run_ms(command);  // warm-up
  for (int i = 0; i < times; ++i) all.push_back(run_ms(command));
  std::sort(all.begin(), all.end());
  return {all[all.size() / 2], all.front(), all.back()};
}

void print(const std::string& what, const Spread& spread) {
  fmt::print("{:<44} {:>8.1f} ms  ({:.1f} to {:.1f})\n", what, spread.median, spread.least,
             spread.most);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: start_bench LOCKSTEP JOIN_PROBE\n");
    return 2;
  }
  const std::string lockstep = argv[1];
  print("sh -c true", repeat(20, {"sh", "-c", "/bin/true; exit"}));
  print("lockstep run -n 1 -- true", repeat(20, {lockstep, "run", "-n", "1", "--", "/bin/true"}));
  for (const char* workers : {"2", "4", "8", "16"}) {
    print(fmt::format("lockstep run -n {}: join, barrier, end", workers),
          repeat(10, {lockstep, "run", "-n", workers, "--", argv[2]}));
  }
  return 0;
}

// A worker that joins its world and does what a test asks for:
//
//   (nothing)     adds one number over the world, and says what came out and how long joining took
//   meet          meets the others again and again, until one of them is lost
//   throw RANK    the same, but that rank fails for a reason of its own, and takes its time to end with 7
//   leave RANK    the same, but that rank ends with 0
//   train MOST    batches for ever, between which at most MOST workers join and leave; says who is there
//   faults STEPS  joins nobody; passes the points of so many steps at which faults on purpose strike
//   crash RANK    leaves its world, and then that rank crashes when the others have ended
//
// A worker that has lost another one ends with 1, at once.
#include <lockstep/lockstep.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "control/faults.h"

namespace {

int add_up() {
  const auto start = std::chrono::steady_clock::now();
  auto world = lockstep::join();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  float value = static_cast<float>(world.rank() + 1);
  world.comm().all_reduce({.data = &value, .count = 1}).wait();
  std::printf("joined %s rank %d of %d sum %g\n", world.launcher().c_str(), world.rank(),
              world.size(), value);
  std::printf("took %.0f\n", took.count());
  return 0;
}

int meet(const std::string& role, int failing) {
  auto world = lockstep::join();
  world.comm().barrier().wait();
  std::printf("ready\n");
  std::fflush(stdout);
  if (world.rank() == failing && role == "throw") throw std::runtime_error("a reason of its own");
  if (world.rank() == failing && role == "leave") return 0;
  while (true) world.comm().barrier().wait();
}

void say_who(const lockstep::World& world) {
  std::printf("rank %d of %d in generation %d\n", world.rank(), world.size(),
              static_cast<int>(world.generation()));
  std::fflush(stdout);
}

// As the loop of a Job: all workers hear in the same batch that somebody wants to join, or is to leave.
[[noreturn]] void train(int most) {
  auto world = lockstep::join();
  say_who(world);
  while (true) {
    try {
      std::int64_t meet = world.newcomers();
      world.comm()
          .all_reduce({&meet, 1, lockstep::DType::kInt64}, {.op = lockstep::ReduceOp::kMax})
          .wait();
      world.allow_workers(most);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (meet == 0) continue;
      world.regroup(false);
    } catch (const lockstep::PeerLost&) {
      world.regroup(true);
    }
    say_who(world);
  }
}

int pass_faults(int steps) {
  lockstep::control::Faults& faults = lockstep::control::Faults::here();
  for (int step = 0; step < steps; ++step) {
    faults.begin(step);
    for (const char* where : {"forward", "backward"}) faults.strike(where, step);
  }
  return 0;
}

int crash(int rank) {
  const bool crashes = lockstep::join().rank() == rank;
  if (!crashes) return 0;
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ::signal(SIGSEGV, SIG_DFL);  // a sanitizer would make an exit code of it
  return ::raise(SIGSEGV);
}

}  // namespace

int main(int argc, char** argv) {
  ::alarm(60);
  try {
    if (argc < 2) return add_up();
    const int number = argc > 2 ? std::atoi(argv[2]) : -1;
    if (std::string(argv[1]) == "train") train(number);
    if (std::string(argv[1]) == "crash") return crash(number);
    if (std::string(argv[1]) == "faults") return pass_faults(number);
    return meet(argv[1], number);
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.kind() == lockstep::ErrorKind::kUnavailable ? 77 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // as LibTorch does
    return 7;
  }
}

// Systems that are measured side by side: all are started at the same time, and then one of them
// runs some steps while the others sleep. A turn is short, so what changes on the machine affects
// all systems alike.
//
// The command and each worker have a pipe. A worker opens them by their place in /proc, so nothing
// is left of them when the command is killed; its workers then find the end of the pipe.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/fd.h"
#include "bench/process.h"

namespace lockstep::bench {

// The command's side. Gives the first turn when all workers of all systems wait for one.
//
// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   the constructor throws Unavailable if there are no descriptors left.
// Ownership: owns the pipes.
class TurnGiver : public Meanwhile {
 public:
  // `workers` of each system; each system gets this number of turns.
  TurnGiver(const std::vector<int>& workers, int turns);

  // What the program of a system needs in its environment.
  Program::Variables variables(std::size_t system) const;

  int fd() const override { return said_.read.get(); }
  void readable() override;
  void ended(std::size_t system) override;

 private:
  struct System {
    std::vector<base::Pipe> go;  // by rank
    int waiting = 0;             // workers that wait for a turn
    int given = 0;               // turns
    bool ended = false;

    bool all_wait() const { return waiting == static_cast<int>(go.size()); }
  };

  bool nobody_runs() const;
  System* next();
  void give();

  base::Pipe said_;  // each worker writes the number of its system when it waits
  std::vector<System> systems_;
  int turns_;
  bool over_ = false;
};

// A worker's side.
//
// Threads:   one caller at a time.
// Blocking:  wait(), until the command gives a turn or dies.
// Failure:   the constructor throws BadInput if the variable makes no sense.
class TurnTaker {
 public:
  TurnTaker();  // reads the environment

  int turns() const { return turns_; }  // 1 for a system that is measured alone
  // False: there are no more.
  bool wait();

 private:
  int turns_ = 1;
  int taken_ = 0;
  unsigned char system_ = 0;
  base::Fd say_;  // none: measured alone
  base::Fd go_;
};

}  // namespace lockstep::bench

// The systems that a benchmark compares, and how each is started on this host.
#pragma once

#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/process.h"

namespace lockstep::bench {

struct Contender {
  std::string name;                  // "lockstep-shm", "openmpi" …
  bool ours = false;                 // its failure is a failure of the command
  std::string settings;              // what was chosen for it, in one line for the report
  std::vector<std::string> command;  // what is run, a launcher first
  ProgramRunner::Variables variables;
};

// Those that can run here, and a line for each that was wanted or could be installed.
struct Field {
  std::vector<Contender> contenders;
  std::vector<std::string> left_out;
};

// The engines that can connect processes and that were asked for. BadInput, naming the known, for one that
// does not exist; Unavailable for one that was not built.
std::vector<std::string> chosen_engines(const Choice& asked);

// Whether a peer (--peers) or a system (--systems) was asked for, by name or by asking for all. `known` are all
// there are; BadInput that lists them for a name that is none.
void check_peers(const Choice& asked, const std::vector<std::string>& known);
void check_systems(const Choice& asked, const std::vector<std::string>& known);
bool asked_for(const Choice& peers, const std::string& name);

// `lockstep run` of a program.
struct Launch {
  int workers = 0;
  int threads = 1;
  std::string engine;  // empty: none is needed
  std::vector<std::string> command;
};
std::vector<std::string> launched(const Launch& launch);

// What a contender gets when the benchmark is killed. `lockstep run` has a keeper that ends all workers when the launcher
// is gone, stopped ones too: SIGKILL, which reaches a launcher that is stopped. Launchers of MPI end their workers, and
// remove their files, when they are told to: SIGTERM. One that is stopped stays until somebody continues it; the kernel
// does, unless a process of its session takes the orphan in.
int death_signal_of(const std::vector<std::string>& command);

// The settings of malloc that all systems run with: memory that was freed is kept, so that nobody
// measures page faults. (With glibc's defaults MPI's large all-reduces spend most of their time in them.)
const ProgramRunner::Variables& allocator_settings();
std::string spoken(const ProgramRunner::Variables& variables);

}  // namespace lockstep::bench

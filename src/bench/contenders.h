// The systems that a benchmark compares, and how each is started on this host.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/process.h"

namespace lockstep::bench {

// One system.
struct Contender {
  std::string name;                  // "lockstep-shm", "openmpi" …
  bool ours = false;                 // if it fails, the command fails
  std::string settings;              // how it is set up, in one line for the report
  std::vector<std::string> command;  // what is run; begins with a launcher
  Program::Variables variables;
  int turn_takers = 0;  // workers that can take turns with other systems; 0: it runs alone
  // If set, these programs are run, all at the same time, in place of `command`: the workers of one
  // run on several hosts. Each call is for a run of its own.
  std::function<std::vector<Program>()> workers;
};

// The systems that can run here, and a line for each other one that was asked for or could be
// installed.
struct Field {
  std::vector<Contender> contenders;
  std::vector<std::string> left_out;
};

// The engines that were asked for and can connect processes. Throws BadInput, with the known names,
// for an engine that does not exist; Unavailable for one that is not in this build.
std::vector<std::string> chosen_engines(const Choice& asked);

// Throws BadInput, with the known names, if another name was asked for with this option.
void check_names(const char* option, const Choice& asked, const std::vector<std::string>& known);

// Whether a system was asked for, by name or because all were.
bool asked_for(const Choice& asked, const std::string& name);

// A program that is started with `lockstep run`.
struct Launch {
  int workers = 0;
  int threads = 1;
  std::string engine;  // empty: none is needed
  std::vector<std::string> command;
};
std::vector<std::string> launched(const Launch& launch);

// The signal that a system gets when the benchmark is killed.
//   lockstep run   SIGKILL, because it also ends a launcher that was stopped by a signal. The
//                  keeper then ends all workers, also stopped ones
//   MPI            SIGTERM, because its launchers then end their workers and remove their files.
//                  One that was stopped stays until somebody continues it. The kernel does that,
//                  unless a process of its session adopts it
int death_signal_of(const std::vector<std::string>& command);

// The settings of malloc for all systems: freed memory is kept, so that page faults are not
// measured. (With glibc's defaults, MPI's large all-reduces spend most of their time in page
// faults.)
const Program::Variables& allocator_settings();
std::string spoken(const Program::Variables& variables);

}  // namespace lockstep::bench

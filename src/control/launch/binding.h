// Where the workers of a host run.
//
// Memory lies on the NUMA node of the worker that touches it first. A worker that stays on its node
// keeps it near. So by default workers are bound to nodes, if there are several, and the kernel moves
// them among the cores of a node as it likes. What a cgroup, Slurm or taskset has forbidden stays
// forbidden.
#pragma once

#include <string>
#include <vector>

#include "base/choice.h"

namespace lockstep::control {

enum class Bind {
  kAuto,   // to NUMA nodes, if there are several
  kCores,  // to cores of its own, next to each other; BadInput if there are fewer cores than workers
  kNone,   // the kernel moves workers as it likes
};
inline constexpr base::Choice<Bind> kBinds[] = {
    {Bind::kAuto, "auto"}, {Bind::kCores, "cores"}, {Bind::kNone, "none"}};

struct Core {
  std::vector<int> cpus;  // its hardware threads, by the kernel's numbers
  int node = 0;           // its NUMA node
  bool operator==(const Core&) const = default;
};

// The cores that this process may use, in the order of the machine: neighbours share caches. Known
// from hwloc; without it every hardware thread counts as a core of node 0.
std::vector<Core> cores_of_this_process();
bool knows_topology();  // built with hwloc

struct Binding {
  std::vector<std::vector<int>> cpus;  // of each worker; empty: not bound
  std::string text;                    // what was chosen, and why, for people
};

// A pure function of its arguments. BadInput as Bind says.
Binding plan_binding(const std::vector<Core>& cores, int workers, Bind bind);

// Binds this process. Called between fork and exec. False if the kernel refuses.
bool bind_to(const std::vector<int>& cpus);

}  // namespace lockstep::control

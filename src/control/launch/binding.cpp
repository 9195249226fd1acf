#include "control/launch/binding.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <sched.h>

#include <algorithm>
#include <map>
#include <memory>

#ifdef LOCKSTEP_WITH_HWLOC
#include <hwloc.h>
#endif

namespace lockstep::control {
namespace {

using CpuSet = std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)>;

constexpr int kMostCpus = 1 << 14;

CpuSet no_cpus() {
  CpuSet set(CPU_ALLOC(kMostCpus), [](cpu_set_t* cpus) { CPU_FREE(cpus); });
  CPU_ZERO_S(CPU_ALLOC_SIZE(kMostCpus), set.get());
  return set;
}

std::vector<int> allowed_cpus() {
  const CpuSet set = no_cpus();
  std::vector<int> cpus;
  if (::sched_getaffinity(0, CPU_ALLOC_SIZE(kMostCpus), set.get()) != 0) return cpus;
  for (int cpu = 0; cpu < kMostCpus; ++cpu) {
    if (CPU_ISSET_S(cpu, CPU_ALLOC_SIZE(kMostCpus), set.get())) cpus.push_back(cpu);
  }
  return cpus;
}

#ifdef LOCKSTEP_WITH_HWLOC
std::vector<Core> cores_of_hwloc(const std::vector<int>& allowed) {
  hwloc_topology_t made = nullptr;
  if (hwloc_topology_init(&made) != 0) return {};
  const std::unique_ptr<hwloc_topology, void (*)(hwloc_topology_t)> topology(
      made, hwloc_topology_destroy);
  if (hwloc_topology_load(topology.get()) != 0) return {};
  std::vector<Core> cores;
  for (hwloc_obj_t core = nullptr;
       (core = hwloc_get_next_obj_by_type(topology.get(), HWLOC_OBJ_CORE, core)) != nullptr;) {
    Core found;
    for (const int cpu : allowed) {
      if (hwloc_bitmap_isset(core->cpuset, static_cast<unsigned>(cpu)) != 0)
        found.cpus.push_back(cpu);
    }
    const int node = core->nodeset != nullptr ? hwloc_bitmap_first(core->nodeset) : 0;
    found.node = std::max(node, 0);
    if (!found.cpus.empty()) cores.push_back(std::move(found));
  }
  return cores;
}
#endif

// The cores of each node, in order.
std::vector<std::vector<Core>> by_node(const std::vector<Core>& cores) {
  std::map<int, std::vector<Core>> nodes;
  for (const Core& core : cores) nodes[core.node].push_back(core);
  std::vector<std::vector<Core>> all;
  all.reserve(nodes.size());
  for (auto& [number, its] : nodes) all.push_back(std::move(its));
  return all;
}

// Part k of `parts`, as even as possible.
template <typename T>
std::vector<T> part_of(const std::vector<T>& all, std::size_t k, std::size_t parts) {
  const auto at = [&](std::size_t i) {
    return all.begin() + static_cast<std::ptrdiff_t>(all.size() * i / parts);
  };
  return {at(k), at(k + 1)};
}

std::vector<int> cpus_of(const std::vector<Core>& cores) {
  std::vector<int> cpus;
  for (const Core& core : cores) cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  return cpus;
}

// Cores of its own for each worker. With as many nodes as workers or more, a worker gets whole nodes.
// Else each node gets as many of the workers as any other.
std::vector<std::vector<Core>> deal(const std::vector<Core>& cores, std::size_t workers) {
  const auto nodes = by_node(cores);
  std::vector<std::vector<Core>> dealt;
  if (workers < nodes.size()) {
    for (std::size_t worker = 0; worker < workers; ++worker) {
      dealt.emplace_back();
      for (const auto& node : part_of(nodes, worker, workers))
        dealt.back().insert(dealt.back().end(), node.begin(), node.end());
    }
  } else {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const std::size_t its = workers * (i + 1) / nodes.size() - workers * i / nodes.size();
      for (std::size_t k = 0; k < its; ++k) dealt.push_back(part_of(nodes[i], k, its));
    }
  }
  return dealt;
}

// All cores of some nodes for each worker: of those in which its even part of all cores mostly lies.
// So a node of which a mask has left little gets few workers.
std::vector<std::vector<Core>> deal_nodes(const std::vector<Core>& cores, std::size_t workers) {
  const auto nodes = by_node(cores);
  std::vector<std::size_t> node_of;  // each core, in the order of nodes
  for (std::size_t i = 0; i < nodes.size(); ++i) node_of.insert(node_of.end(), nodes[i].size(), i);
  std::vector<std::vector<Core>> dealt;
  for (std::size_t worker = 0; worker < workers; ++worker) {
    std::vector<std::size_t> held(nodes.size());
    for (const std::size_t node : part_of(node_of, worker, workers)) ++held[node];
    std::size_t most = *std::max_element(held.begin(), held.end());
    if (most == 0) {  // more workers than cores: a part may be empty, but it begins somewhere
      held[node_of[node_of.size() * worker / workers]] = 1;
      most = 1;
    }
    dealt.emplace_back();
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (2 * held[i] > most)
        dealt.back().insert(dealt.back().end(), nodes[i].begin(), nodes[i].end());
    }
  }
  return dealt;
}

std::string count_of(std::size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string cores_each(const std::vector<std::vector<Core>>& dealt) {
  const auto [least, most] = std::minmax_element(
      dealt.begin(), dealt.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  if (least->size() == most->size()) return count_of(most->size(), "core");
  return fmt::format("{} or {} cores", least->size(), most->size());
}

Binding binding_of(const std::vector<std::vector<Core>>& dealt, std::string text) {
  Binding binding;
  binding.text = std::move(text);
  for (const auto& cores : dealt) binding.cpus.push_back(cpus_of(cores));
  return binding;
}

}  // namespace

bool knows_topology() {
#ifdef LOCKSTEP_WITH_HWLOC
  return true;
#else
  return false;
#endif
}

std::vector<Core> cores_of_this_process() {
  const std::vector<int> allowed = allowed_cpus();
  std::vector<Core> cores;
#ifdef LOCKSTEP_WITH_HWLOC
  cores = cores_of_hwloc(allowed);
#endif
  if (cores.empty()) {
    for (const int cpu : allowed) cores.push_back({{cpu}, 0});
  }
  return cores;
}

Binding plan_binding(const std::vector<Core>& cores, int workers, Bind bind) {
  const auto wanted = static_cast<std::size_t>(workers);
  const std::size_t nodes = by_node(cores).size();
  if (bind == Bind::kNone) return {{}, "not bound, as asked"};
  if (bind == Bind::kAuto) {
    if (nodes < 2) return {{}, "not bound: one NUMA node"};
    return binding_of(deal_nodes(cores, wanted), fmt::format("bound to {} NUMA nodes", nodes));
  }
  if (wanted > cores.size()) {
    throw BadInput(
        fmt::format("--bind cores: {} workers cannot have a core each, because this "
                    "process may use {}; start fewer, or give --bind none",
                    workers, count_of(cores.size(), "core")));
  }
  auto dealt = deal(cores, wanted);
  // Nodes of different sizes could leave a worker of a small one without a core.
  if (std::any_of(dealt.begin(), dealt.end(), [](const auto& its) { return its.empty(); })) {
    for (std::size_t worker = 0; worker < wanted; ++worker)
      dealt[worker] = part_of(cores, worker, wanted);
  }
  return binding_of(dealt, fmt::format("each bound to {}", cores_each(dealt)));
}

bool bind_to(const std::vector<int>& cpus) {
  const CpuSet set = no_cpus();
  for (const int cpu : cpus) CPU_SET_S(cpu, CPU_ALLOC_SIZE(kMostCpus), set.get());
  return ::sched_setaffinity(0, CPU_ALLOC_SIZE(kMostCpus), set.get()) == 0;
}

}  // namespace lockstep::control

// `lockstep bench hosts`: workers on several hosts, which are namespaces of this machine
// (hosts/hosts.h).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/contenders.h"

namespace lockstep::bench {

int bench_hosts(const std::vector<std::string>& arguments);

// Runs `lockstep bench-enter ADDRESS WORDS…`, which MPI's launcher calls in place of ssh: a shell runs
// the words in the host with this address.
int enter_host(const std::vector<std::string>& arguments);

// The times of one system in one section.
struct HostsResult {
  std::string system;
  std::string settings;
  std::vector<double> samples;  // µs of all-reduces, ms of steps

  // Adds what the workers of one run printed. Throws std::exception for lines that it does not
  // understand, and if there are none.
  void add(const std::vector<std::string>& lines);
};

// One task that several systems did.
struct HostsSection {
  std::string name;                  // loopback, allreduce, mlp, cnn
  std::string title;                 // for people
  std::string unit;                  // µs or ms
  std::size_t bytes = 0;             // of an all-reduce; 0: a step
  std::vector<std::string> bases;    // the systems by whose times those of others are divided
  double least = 0;                  // the least time that the network allows; 0: not known
  std::vector<HostsResult> results;  // of systems that never failed
};

std::string as_json(const std::vector<HostsSection>& sections);
std::string as_table(const std::vector<HostsSection>& sections);

// The least time in µs in which H hosts can reduce a buffer if each may send and receive at `rate`,
// in bits a second: 2 (H−1)/H of the buffer, without the headers of TCP.
double least_time(std::size_t bytes, int hosts, double rate);

}  // namespace lockstep::bench

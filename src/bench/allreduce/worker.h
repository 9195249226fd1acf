// The workers of `bench allreduce` that are part of the `lockstep` command.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/allreduce/measure.h"

namespace lockstep::bench {

// Runs `lockstep bench-worker KIND SECONDS SAMPLES BYTES…`, started by `lockstep run`, or on
// several hosts by `lockstep bench hosts`. KIND is
// `engine` (the launcher's engine), `in-place-tree`, `in-place-ranks`, `limit`, `limit-dirty`,
// `sockets:RAILS`, `sockets-spin:RAILS` (sockets_peer.cpp), or `gloo:FOLDER`, where FOLDER is the folder in which Gloo's
// workers meet.
int allreduce_worker(const std::vector<std::string>& arguments);

// An environment variable of the launcher, such as RANK; 0 if it is not set.
int number_of(const char* variable);

// The address that workers without an engine of Lockstep use; if it is not set, the loopback's.
inline constexpr char kAddressVariable[] = "LOCKSTEP_BENCH_ADDRESS";

// What a worker does while nothing has come.
enum class Idle { kSleeps, kSpins };
std::unique_ptr<Reducer> make_sockets_peer(int rails, Idle idle);

// Gloo alone, without Lockstep; see gloo_peer.cpp. Throws Unavailable if this build has no Gloo.
bool gloo_peer_built();
std::unique_ptr<Reducer> make_gloo_peer(const std::string& folder);

}  // namespace lockstep::bench

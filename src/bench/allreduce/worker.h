// The workers of `bench allreduce` that are part of the `lockstep` command.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/allreduce/measure.h"

namespace lockstep::bench {

// Runs `lockstep bench-worker KIND SECONDS SAMPLES BYTES…`, started by `lockstep run`. KIND is
// `engine` (the launcher's engine), `in-place-tree`, `in-place-ranks`, `limit`, `limit-dirty`, or
// `gloo:FOLDER`, where FOLDER is the folder in which Gloo's workers meet.
int allreduce_worker(const std::vector<std::string>& arguments);

// An environment variable of the launcher, such as RANK; 0 if it is not set.
int number_of(const char* variable);

// Gloo alone, without Lockstep; see gloo_peer.cpp. Throws Unavailable if this build has no Gloo.
bool gloo_peer_built();
std::unique_ptr<Reducer> make_gloo_peer(const std::string& folder);

}  // namespace lockstep::bench

// The workers of `bench allreduce` that are part of the `lockstep` command.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/allreduce/measure.h"

namespace lockstep::bench {

// `lockstep bench-worker KIND SECONDS SAMPLES BYTES…`, started by `lockstep run`. KIND is `engine` (the
// one that the launcher was told), `limit`, or `gloo:FOLDER`, a folder where Gloo's workers meet.
int allreduce_worker(const std::vector<std::string>& arguments);

// Gloo by itself, without Lockstep; see gloo_peer.cpp. Unavailable where it was not built.
bool gloo_peer_built();
std::unique_ptr<Reducer> make_gloo_peer(const std::string& folder);

}  // namespace lockstep::bench

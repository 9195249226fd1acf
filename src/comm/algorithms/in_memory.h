// The collectives in memory that all participants can reach. Each begins an operation with a round on the board, and
// returns false if some buffer can be reached by its own worker only: messages do the rest then.
#pragma once

#include "comm/algorithms/algorithms.h"

namespace lockstep::comm {

bool reduce_in_memory(Exchange& exchange, const plan::Reduction& plan,
                      std::span<const Buffer> partials, Buffer result, ReduceRule rule);
bool reduce_scatter_in_memory(Exchange& exchange, Buffer data, const Cut& cut, ReduceRule rule);
bool all_gather_in_memory(Exchange& exchange, Buffer data, const Cut& cut);
bool broadcast_in_memory(Exchange& exchange, Buffer data, int root);

}  // namespace lockstep::comm

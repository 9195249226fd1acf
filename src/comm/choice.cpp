#include "comm/choice.h"

#include <fmt/format.h>

#include "plan/tree.h"

namespace lockstep::comm {

Choice choose(Algorithm asked, int shards, int workers, bool has_native) {
  if (asked == Algorithm::kAutomatic || workers == 1) return {Algorithm::kDirect, "direct"};
  if (asked == Algorithm::kNative && !has_native)
    return {Algorithm::kDirect, "direct (asked for native: the engine has none for these workers)"};
  if (asked == Algorithm::kHalvingDoubling) {
    const auto verdict = plan::halving_doubling_verdict(shards, workers);
    if (!verdict.possible) {
      return {Algorithm::kDirect,
              fmt::format("direct (asked for halving-doubling: {})", verdict.reason)};
    }
  } else if (asked != Algorithm::kDirect && shards != workers) {
    return {Algorithm::kDirect,
            fmt::format("direct (asked for {}: it takes one partial per worker)", name(asked))};
  }
  return {asked, name(asked)};
}

}  // namespace lockstep::comm

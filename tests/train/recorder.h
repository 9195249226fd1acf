// The job of recorder.cpp.
#pragma once

#include <cstdint>

namespace lockstep::testing {

inline constexpr std::int64_t kSamples = 256;
inline constexpr std::int64_t kBatch = 32;  // eight steps an epoch
inline constexpr int kShards = 8;
inline constexpr std::int64_t kStepsOfAnEpoch = kSamples / kBatch;

}  // namespace lockstep::testing

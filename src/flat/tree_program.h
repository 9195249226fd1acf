// The order of additions as a device reads it: which of the running sums to add after each operand.
//
//   for every operand in shard order: push it; then adds[i] times replace the two sums on top by their sum, the lower
//   one the left operand
//
// The tree over shards is such a program for every number of workers: its operands come from left to right, and a sum
// is used right after it has been made.
#pragma once

#include <lockstep/buffer.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "flat/fold.h"
#include "plan/tree.h"

namespace lockstep::flat {

// What fits beside its pointers into the 4 KiB that a kernel may be handed.
inline constexpr std::size_t kMostOperands = 448;
// Sums that wait at a time: one for every level of the tree.
inline constexpr int kMostWaiting = 16;

// (sum of the operands, in the program's order) · factor, element by element; `out` may be one of the operands.
struct SumTask {
  std::vector<const void*> operands;
  std::vector<std::uint8_t> adds;
  void* out = nullptr;
  std::size_t count = 0;
  Fold fold;
};

// The program of a plan. Unavailable for more operands than a device takes.
std::vector<std::uint8_t> tree_program(const plan::Reduction& plan);

// The sum over everyone's operands on the device.

// Queues the sum on a stream of the current device.
void queue_tree_sum(const SumTask& task, void* stream);

}  // namespace lockstep::flat

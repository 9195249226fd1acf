// The order of additions as a program for a stack, which a device can run.
//
//   for every operand i in shard order: push it. Then, adds[i] times, replace the two values on top
//   of the stack by their sum. The lower of the two is the left operand
//
// The tree over shards is such a program for every number of workers: its operands come from left
// to right, and the two values of an addition are always the two on top of the stack.
#pragma once

#include <lockstep/buffer.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "flat/fold.h"
#include "plan/tree.h"

namespace lockstep::flat {

// So many operands, with their pointers, fit into the 4 KiB of arguments that a kernel may have.
inline constexpr std::size_t kMostOperands = 448;
// The height of the stack: one sum for every level of the tree.
inline constexpr int kMostWaiting = 16;

// out = (sum of the operands, in the program's order) · factor, element by element. `out` may be
// one of the operands.
struct SumTask {
  std::vector<const void*> operands;
  std::vector<std::uint8_t> adds;
  void* out = nullptr;
  std::size_t count = 0;
  Fold fold;
};

// The program of a plan. Throws Unavailable if there are more operands than a kernel takes.
std::vector<std::uint8_t> tree_program(const plan::Reduction& plan);

// Queues a sum on a stream of the current device.
void queue_tree_sum(const SumTask& task, void* stream);

}  // namespace lockstep::flat

// The sum over the partials of all workers, in the order of a plan, on a CPU.
#pragma once

#include <lockstep/buffer.h>

#include <cstddef>
#include <span>
#include <vector>

#include "flat/fold.h"
#include "flat/parity.h"
#include "plan/tree.h"

namespace lockstep::flat {

// Works strip by strip. A strip stays in a cache, so each operand is read from memory once, and the
// sum of a strip is stored to all outputs while it is still in the cache. A sum of two sums is one
// pass over a strip.
//
// Threads:   one caller at a time: run() uses its scratch rows.
// Blocking:  never.
// Failure:   none.
// Ownership: owns its scratch rows; operands and outputs belong to the caller.
class TreeSum {
 public:
  // The fold's factor multiplies only the root.
  TreeSum(const plan::Reduction& plan, const Fold& fold);

  // operands[i] is the plan's operand i; all have `count` elements. Every one of `outs` gets the
  // sum. An output may be one of the operands.
  void run(std::span<const void* const> operands, std::span<void* const> outs, std::size_t count);
  void run(std::span<const void* const> operands, void* out, std::size_t count);
  // The same, and the parity of all operands together.
  Parity run_with_parity(std::span<const void* const> operands, void* out, std::size_t count);
  // An array of outputs must not be taken for one output.
  void run(std::span<const void* const> operands, void** outs, std::size_t count) = delete;

 private:
  // Where a value is while a strip is summed: in an operand, or in a scratch row.
  struct Input {
    bool scratch = false;
    int index = 0;
    bool operator==(const Input&) const = default;
  };
  // left + right, or (left + right) + (left2 + right2).
  struct Step {
    Input left;
    Input right;
    int into = 0;  // scratch row
    bool of_four = false;
    Input left2{};
    Input right2{};
  };
  static std::vector<Step> with_fours(const std::vector<Step>& steps);
  const void* locate(Input input, std::span<const void* const> operands, std::size_t first) const;
  void sum_piece(std::span<const void* const> operands, void* out, std::size_t first,
                 std::size_t count);
  Parity sum_piece_with_parity(std::span<const void* const> operands, void* out, std::size_t first,
                               std::size_t count);

  Fold fold_;  // of the root
  std::size_t operands_;
  std::size_t strip_ = 0;
  std::vector<Step> steps_;
  std::vector<std::vector<std::byte>> rows_;
};

}  // namespace lockstep::flat

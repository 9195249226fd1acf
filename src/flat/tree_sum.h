// The sum of a stretch over everyone's partials, in the order of a plan.
#pragma once

#include <lockstep/buffer.h>

#include <cstddef>
#include <span>
#include <vector>

#include "flat/fold.h"
#include "flat/parity.h"
#include "plan/tree.h"

namespace lockstep::flat {

// Works in pieces that stay in cache: each operand is read from memory once, and the sum of a piece
// goes to every input that wants it while it is still at hand. Sums of two sums are one pass.
class TreeSum {
 public:
  // The fold's factor multiplies the root alone.
  TreeSum(const plan::Reduction& plan, const Fold& fold);

  // operands[i] is the plan's operand i, all of `count` elements; every one of `outs` gets the sum,
  // and may be any of the operands.
  void run(std::span<const void* const> operands, std::span<void* const> outs, std::size_t count);
  void run(std::span<const void* const> operands, void* out, std::size_t count);
  // The same, and the parity of all operands together.
  Parity run_with_parity(std::span<const void* const> operands, void* out, std::size_t count);
  // An array of outputs must not pass for one output.
  void run(std::span<const void* const> operands, void** outs, std::size_t count) = delete;

 private:
  // Where a value lies while a piece is summed: an operand, or a scratch row.
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

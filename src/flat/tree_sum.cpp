#include "flat/tree_sum.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

namespace lockstep::flat {
namespace {

// Elements of a strip if there are several steps: they go through all steps, and to all outputs,
// before the next ones are read. With kStripElements, eight operands of 64 MiB in three steps took
// 1.2 times as long on a Neoverse-V1.
constexpr std::size_t kStripOfSteps = 512;

bool adds_four(const Fold& fold) {
  return fold.op == ReduceOp::kSum &&
         (fold.dtype == DType::kFloat32 || fold.dtype == DType::kFloat64);
}

}  // namespace

TreeSum::TreeSum(const plan::Reduction& plan, const Fold& fold)
    : fold_(fold), operands_(plan.operands.size()) {
  const bool whole =
      fold.dtype != DType::kFloat32 && fold.dtype != DType::kFloat64 && !is_half(fold.dtype);
  LOCKSTEP_CHECK(fold.factor == 1 || !whole, "whole numbers have no factor");
  // Every result is used once, and additions come in order, so a stack of free scratch rows is
  // enough.
  std::vector<int> free_rows;
  std::vector<int> row_of(plan.additions.size(), -1);
  const auto input = [&](int number) -> Input {
    if (number < static_cast<int>(operands_)) return {false, number};
    const int row = row_of[number - operands_];
    free_rows.push_back(row);
    return {true, row};
  };
  int rows = 0;
  steps_.reserve(plan.additions.size());
  for (std::size_t i = 0; i < plan.additions.size(); ++i) {
    Step step;
    step.left = input(plan.additions[i].left);
    step.right = input(plan.additions[i].right);
    if (free_rows.empty()) free_rows.push_back(rows++);
    step.into = free_rows.back();
    free_rows.pop_back();
    row_of[i] = step.into;
    steps_.push_back(step);
  }
  if (adds_four(fold) && steps_.size() > 2) steps_ = with_fours(steps_);
  strip_ = steps_.size() <= 1 ? kStripElements : kStripOfSteps;
  // Half operands are widened into two more rows.
  const int widened = is_half(fold.dtype) ? 2 : 0;
  if (steps_.size() <= 1 && widened == 0) return;  // the only step stores to the output
  rows_.assign(rows + widened, std::vector<std::byte>(strip_ * size_of(sum_type(fold.dtype))));
}

// Makes one step of four operands from a sum of two sums. Additions come depth first. So if both
// operands of a node are sums, and these have only operands or earlier rows below them, they are
// the two steps before it. A step may write the row that it has read.
std::vector<TreeSum::Step> TreeSum::with_fours(const std::vector<Step>& steps) {
  std::vector<Step> fused;
  for (const Step& step : steps) {
    const std::size_t count = fused.size();
    const bool follows = count >= 2 && !fused[count - 2].of_four && !fused[count - 1].of_four &&
                         step.left == Input{true, fused[count - 2].into} &&
                         step.right == Input{true, fused[count - 1].into};
    if (!follows) {
      fused.push_back(step);
      continue;
    }
    const Step second = fused.back();
    fused.pop_back();
    const Step first = fused.back();
    fused.pop_back();
    fused.push_back({first.left, first.right, step.into, true, second.left, second.right});
  }
  return fused;
}

const void* TreeSum::locate(Input input, std::span<const void* const> operands,
                            std::size_t first) const {
  if (input.scratch) return rows_[input.index].data();
  return static_cast<const std::byte*>(operands[input.index]) + first * size_of(fold_.dtype);
}

// Only the last step writes `out`, after it has read it. So `out` may be an operand.
void TreeSum::sum_piece(std::span<const void* const> operands, void* out, std::size_t first,
                        std::size_t count) {
  if (steps_.empty()) {
    return scale(fold_.dtype, fold_.factor, locate({false, 0}, operands, first), out, count);
  }
  const bool half = is_half(fold_.dtype);
  const auto widened = [&](Input input, std::size_t row) -> const void* {
    const void* source = locate(input, operands, first);
    if (!half || input.scratch) return source;
    auto* wide = reinterpret_cast<float*>(rows_[rows_.size() - 2 + row].data());
    widen(fold_.dtype, source, wide, count);
    return wide;
  };
  for (const Step& step : steps_) {
    const bool last = &step == &steps_.back();
    if (step.of_four) {
      add_four({fold_.dtype, fold_.op, last ? fold_.factor : 1},
               {locate(step.left, operands, first), locate(step.right, operands, first),
                locate(step.left2, operands, first), locate(step.right2, operands, first)},
               last ? out : rows_[step.into].data(), count);
      continue;
    }
    const void* left = widened(step.left, 0);
    const void* right = widened(step.right, 1);
    void* into = last && !half ? out : rows_[step.into].data();
    const Fold fold{sum_type(fold_.dtype), fold_.op, last ? fold_.factor : 1};
    combine(fold, left, right, into, count);
    if (last && half) narrow(fold_.dtype, static_cast<const float*>(into), out, count);
  }
}

// As sum_piece, with parity. Half operands are widened first, so their parity is computed
// separately.
Parity TreeSum::sum_piece_with_parity(std::span<const void* const> operands, void* out,
                                      std::size_t first, std::size_t count) {
  if (steps_.empty()) {
    return scale_with_parity(fold_.dtype, fold_.factor, locate({false, 0}, operands, first), out,
                             count);
  }
  Parity seen = 0;
  if (is_half(fold_.dtype)) {
    for (std::size_t i = 0; i < operands_; ++i)
      seen ^= parity(fold_.dtype, locate({false, static_cast<int>(i)}, operands, first), count);
    sum_piece(operands, out, first, count);
    return seen;
  }
  for (const Step& step : steps_) {
    const bool last = &step == &steps_.back();
    const void* left = locate(step.left, operands, first);
    const void* right = locate(step.right, operands, first);
    void* into = last ? out : rows_[step.into].data();
    const Fold fold{fold_.dtype, fold_.op, last ? fold_.factor : 1};
    if (step.of_four) {
      const Input inputs[] = {step.left, step.right, step.left2, step.right2};
      std::array<const void*, 4> at{};
      std::array<bool, 4> watched{};
      for (std::size_t i = 0; i < at.size(); ++i) {
        at[i] = locate(inputs[i], operands, first);
        watched[i] = !inputs[i].scratch;
      }
      seen ^= add_four_with_parity(fold, at, watched, into, count);
      continue;
    }
    if (step.left.scratch && step.right.scratch) {
      combine(fold, left, right, into, count);
    } else {
      const ParityOf which = step.left.scratch    ? ParityOf::kRight
                             : step.right.scratch ? ParityOf::kLeft
                                                  : ParityOf::kBoth;
      seen ^= combine_with_parity(fold, left, right, into, count, which);
    }
  }
  return seen;
}

Parity TreeSum::run_with_parity(std::span<const void* const> operands, void* out,
                                std::size_t count) {
  LOCKSTEP_CHECK(operands.size() == operands_, "one pointer for every operand of the plan");
  Parity seen = 0;
  for (std::size_t first = 0; first < count; first += strip_) {
    seen ^=
        sum_piece_with_parity(operands, static_cast<std::byte*>(out) + first * size_of(fold_.dtype),
                              first, std::min(strip_, count - first));
  }
  return seen;
}

void TreeSum::run(std::span<const void* const> operands, std::span<void* const> outs,
                  std::size_t count) {
  LOCKSTEP_CHECK(operands.size() == operands_, "one pointer for every operand of the plan");
  LOCKSTEP_CHECK(!outs.empty(), "somewhere to put the sum");
  const std::size_t element = size_of(fold_.dtype);
  for (std::size_t first = 0; first < count; first += strip_) {
    const std::size_t part = std::min(strip_, count - first);
    const auto input = [&](void* out) { return static_cast<std::byte*>(out) + first * element; };
    sum_piece(operands, input(outs[0]), first, part);
    for (void* const out : outs.subspan(1)) {
      if (out != outs[0]) std::memcpy(input(out), input(outs[0]), part * element);
    }
  }
}

void TreeSum::run(std::span<const void* const> operands, void* out, std::size_t count) {
  run(operands, std::span<void* const>(&out, 1), count);
}

}  // namespace lockstep::flat

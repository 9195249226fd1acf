#include "torch/step/slices.h"

#include "torch/replica/gradient_source.h"

namespace lockstep::steps {

std::vector<Slice> slices_of(const replica::ModelPlan& plan, int workers) {
  const auto& pieces = plan.pieces.all;
  std::size_t all = 0;
  for (const plan::Stretch& piece : pieces) all += piece.count;
  std::vector<Slice> slices;
  std::size_t number = 0;
  std::size_t before = 0;  // elements
  for (int worker = 0; worker < workers; ++worker) {
    Slice slice{{number, number}, slices.empty() ? 0 : slices.back().end, plan.layout.bytes()};
    const std::size_t share =
        all * static_cast<std::size_t>(worker + 1) / static_cast<std::size_t>(workers);
    const bool is_last = worker + 1 == workers;
    for (; number < pieces.size() && (is_last || before + pieces[number].count / 2 < share);
         ++number)
      before += pieces[number].count;
    slice.pieces.end = number;
    if (number < pieces.size()) slice.end = replica::offset_of(plan.layout, pieces[number]);
    slices.push_back(slice);
  }
  return slices;
}

}  // namespace lockstep::steps

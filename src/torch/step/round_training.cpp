#include "torch/step/round_training.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "flat/fold.h"
#include "torch/optim/impl.h"
#include "torch/replica/replicated.h"

namespace lockstep::steps {
namespace {

// Of a gradient that was computed from older weights.
template <typename T>
void compensate(double strength, const T* now, const T* seen, std::size_t count, T* gradient) {
  const T factor = static_cast<T>(strength);
  for (std::size_t i = 0; i < count; ++i)
    gradient[i] += factor * gradient[i] * gradient[i] * (now[i] - seen[i]);
}

// Of any number of elements; the strips are added one after the other.
double squares_of(DType dtype, const void* values, std::size_t count) {
  double sum = 0;
  for (std::size_t first = 0; first < count; first += flat::kStripElements) {
    const auto* const strip = static_cast<const std::byte*>(values) + first * size_of(dtype);
    sum += flat::sum_of_squares(dtype, strip, std::min(flat::kStripElements, count - first));
  }
  return sum;
}

}  // namespace

RoundTraining::RoundTraining(LocalModel& model, double delay_compensation,
                             std::chrono::milliseconds timeout)
    : model_(model),
      trained_(optim::inside(model.inner()).trained),
      round_model_(make_round_model(*trained_.model, timeout)),
      delay_compensation_(delay_compensation) {}

RoundTraining::Pieces RoundTraining::all_pieces() const {
  return {0, trained_.model->parts().plan.pieces.all.size()};
}

void RoundTraining::set_rates(const plan::StepRange& steps, const Schedule& schedule) {
  first_step_ = steps.first;
  rates_.clear();
  for (std::int64_t step = steps.first; schedule && step < steps.end; ++step) {
    model_.inner().set_lr(schedule(step));
    rates_.push_back(trained_.groups.rates());
  }
  if (schedule) return;
  model_.inner().lr();  // follows a scheduler of LibTorch
  rates_.push_back(trained_.groups.rates());
}

void RoundTraining::begin() {
  release();
  wait();
}

RoundTraining::Gradient RoundTraining::gradient() {
  Gradient gradient{round_model_->gradient()};
  if (delay_compensation_ == 0) gradient.weights = nullptr;
  return gradient;
}

void RoundTraining::keep(Gradient& gradient) const {
  const std::size_t bytes = trained_.model->layout().bytes();
  const auto copy = [bytes](const std::byte*& from, std::vector<std::byte>& to) {
    if (from == nullptr) return;
    to.assign(from, from + bytes);
    from = to.data();
  };
  copy(gradient.values, gradient.kept_values);
  copy(gradient.weights, gradient.kept_weights);
}

void RoundTraining::release() {
  model_.inner().zero_grad();
}

void RoundTraining::add(const RoundMemory& memory, Pieces pieces, const std::byte* values,
                        double weight, bool first) const {
  const replica::ModelPlan& plan = trained_.model->parts().plan;
  const auto add_piece = [&](auto zero, std::size_t offset, std::size_t count) {
    using T = decltype(zero);
    const T* const gradient = reinterpret_cast<const T*>(values + offset);
    T* const sum = reinterpret_cast<T*>(memory.sum + offset);
    const T factor = static_cast<T>(weight);
    for (std::size_t i = 0; i < count; ++i)
      sum[i] = first ? factor * gradient[i] : sum[i] + factor * gradient[i];
  };
  for (std::size_t number = pieces.begin; number < pieces.end; ++number) {
    const plan::Stretch& piece = plan.pieces.all[number];
    const std::size_t offset = replica::offset_of(plan.layout, piece);
    const bool wide = plan.layout.entries()[piece.entry].dtype == DType::kFloat64;
    wide ? add_piece(double{}, offset, piece.count) : add_piece(float{}, offset, piece.count);
  }
}

replica::GradientSource RoundTraining::source_of(const std::byte* values, double factor) const {
  auto source = replica::GradientSource::of(trained_.model->averages(), trained_.model->layout());
  source.operands = {values};
  source.factor = factor;
  source.limit = trained_.extras.clip_value;
  return source;
}

double RoundTraining::factor_of(const std::byte* values, double divisor) const {
  const double factor = 1 / divisor;
  if (trained_.extras.clip_norm == 0) return factor;
  const double norm = norm_of(source_of(values, factor), trained_.extras.clipped);
  if (!std::isfinite(norm))
    throw BadInput(
        fmt::format("the norm of a gradient is {}: training has diverged; lower the "
                    "learning rate or warm it up",
                    norm));
  return factor * std::min(trained_.extras.clip_norm / (norm + 1e-6), 1.0);  // as clip_grad_norm_
}

// By pieces, which do not depend on threads.
double RoundTraining::norm_of(const replica::GradientSource& source, optim::Norm norm) const {
  const replica::ModelPlan& plan = trained_.model->parts().plan;
  const bool largest = norm == optim::Norm::kLargest;
  std::vector<double> of_pieces(plan.pieces.all.size());
  replica::for_each_piece({plan, {0, of_pieces.size()}}, source,
                          [&](std::size_t number, replica::GradientReader& reader) {
                            const plan::Stretch& piece = plan.pieces.all[number];
                            const void* const values = reader.read(piece);
                            of_pieces[number] =
                                largest ? flat::largest(reader.dtype(), values, piece.count)
                                        : squares_of(reader.dtype(), values, piece.count);
                          });
  if (largest) return flat::largest(DType::kFloat64, of_pieces.data(), of_pieces.size());
  return std::sqrt(std::accumulate(of_pieces.begin(), of_pieces.end(), 0.0));
}

void RoundTraining::apply(const RoundMemory& memory, Pieces pieces, const Update& update) {
  const replica::ModelPlan& plan = trained_.model->parts().plan;
  const std::size_t entries = plan.layout.entries().size();
  const auto row = std::min(static_cast<std::size_t>(update.step - first_step_), rates_.size() - 1);
  const std::vector<double>& rates = rates_[row];
  const replica::GradientSource source = source_of(update.gradient, update.factor);
  replica::for_each_piece(
      {plan, pieces}, source, [&](std::size_t number, replica::GradientReader& reader) {
        const plan::Stretch& piece = plan.pieces.all[number];
        const std::size_t offset = replica::offset_of(plan.layout, piece);
        const std::size_t first = piece.first * size_of(reader.dtype());
        flat::Elements elements;
        elements.dtype = reader.dtype();
        elements.count = piece.count;
        elements.parameter = memory.weights + offset;
        elements.gradient = reader.read(piece);
        std::vector<double> compensated;  // double for the alignment
        if (update.seen != nullptr) {
          compensated.resize(piece.count);
          std::memcpy(compensated.data(), elements.gradient, piece.count * size_of(reader.dtype()));
          const auto add = [&](auto zero) {
            using T = decltype(zero);
            compensate(delay_compensation_, static_cast<const T*>(elements.parameter),
                       reinterpret_cast<const T*>(update.seen + offset), piece.count,
                       reinterpret_cast<T*>(compensated.data()));
          };
          reader.dtype() == DType::kFloat64 ? add(double{}) : add(float{});
          elements.gradient = compensated.data();
        }
        for (std::size_t state = 0; state < trained_.state.count(); ++state) {
          elements.state[trained_.state.state_of(state)] =
              memory.states[state * entries + piece.entry] + first;
        }
        const double lr = rates[trained_.groups.group_of(piece.entry)] * update.rate;
        trained_.groups.rule_of(piece.entry).update(elements, {.number = update.number, .lr = lr});
      });
}

}  // namespace lockstep::steps

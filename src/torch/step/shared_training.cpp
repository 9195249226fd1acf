#include "torch/step/shared_training.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "flat/fold.h"
#include "torch/optim/impl.h"
#include "torch/replica/replicated.h"
#include "torch/replica/tensors.h"

namespace lockstep::steps {
namespace {

// The learning rates of all rules, times a factor, while it lives.
class ScaledRates {
 public:
  ScaledRates(optim::Groups& groups, double factor) : groups_(groups), before_(groups.rates()) {
    for (std::size_t i = 0; i < before_.size(); ++i) groups_.rule(i).set_lr(before_[i] * factor);
  }
  ~ScaledRates() {
    for (std::size_t i = 0; i < before_.size(); ++i) groups_.rule(i).set_lr(before_[i]);
  }
  ScaledRates(const ScaledRates&) = delete;
  ScaledRates& operator=(const ScaledRates&) = delete;

 private:
  optim::Groups& groups_;
  std::vector<double> before_;
};

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

SharedTraining::SharedTraining(LocalModel& model, double delay_compensation)
    : model_(model),
      trained_(optim::inside(model.inner()).trained),
      delay_compensation_(delay_compensation) {
  const auto& entries = trained_.model->layout().entries();
  for (std::size_t entry = 0; entry < entries.size(); ++entry) {
    const torch::Tensor& like = trained_.parameter(entry);
    std::byte* const first = model_.course().weights() + entries[entry].offset;
    weights_.push_back(like.is_non_overlapping_and_dense()
                           ? torch::from_blob(first, like.sizes(), like.strides(), like.options())
                           : torch::from_blob(first, like.sizes(), like.options()));
  }
}

void SharedTraining::open(std::int64_t steps) {
  torch::NoGradGuard no_grad;
  model_.open_round();
  release();  // of a round that was broken off between backward and update
  Course& course = model_.course();
  const auto turn = course.now();
  if (!course.open(steps)) return;
  for (std::size_t entry = 0; entry < weights_.size(); ++entry)
    weights_[entry].copy_(trained_.parameter(entry));
  const auto before = model_.state_before();
  const auto state = model_.state_after();
  for (std::size_t i = 0; i < state.size(); ++i) state[i].copy_(before[i]);
  give_buffers(replica::pack(trained_.model->model().buffers));
}

void SharedTraining::take() {
  torch::NoGradGuard no_grad;
  for (std::size_t entry = 0; entry < weights_.size(); ++entry)
    trained_.parameter(entry).detach().copy_(weights_[entry]);
  const auto& buffers = trained_.model->model().buffers;
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : buffers) bytes += tensor.nbytes();
  const std::byte* const shared = model_.course().buffers();
  replica::unpack({shared, shared + bytes}, buffers);
}

void SharedTraining::give_buffers(const std::vector<std::byte>& buffers) {
  std::copy(buffers.begin(), buffers.end(), model_.course().buffers());
}

SharedTraining::Gradient SharedTraining::gradient() {
  trained_.model->settle();
  Gradient gradient;
  gradient.values = trained_.model->averages().data();
  if (delay_compensation_ > 0) gradient.weights = trained_.model->parts().parameters->seen().data();
  gradient.buffers = replica::pack(trained_.model->model().buffers);
  return gradient;
}

void SharedTraining::keep(Gradient& gradient) const {
  const std::size_t bytes = trained_.model->layout().bytes();
  const auto copy = [bytes](const std::byte*& from, std::vector<std::byte>& to) {
    if (from == nullptr) return;
    to.assign(from, from + bytes);
    from = to.data();
  };
  copy(gradient.values, gradient.kept_values);
  copy(gradient.weights, gradient.kept_weights);
}

void SharedTraining::release() {
  model_.inner().zero_grad();
}

void SharedTraining::add(const Gradient& gradient, double weight, bool first) {
  const replica::ModelPlan& plan = trained_.model->parts().plan;
  const auto add_piece = [&](auto zero, std::size_t offset, std::size_t count) {
    using T = decltype(zero);
    const T* const values = reinterpret_cast<const T*>(gradient.values + offset);
    T* const sum = reinterpret_cast<T*>(model_.course().sum() + offset);
    const T factor = static_cast<T>(weight);
    for (std::size_t i = 0; i < count; ++i)
      sum[i] = first ? factor * values[i] : sum[i] + factor * values[i];
  };
  for (const plan::Stretch& piece : plan.pieces.all) {
    const std::size_t offset = replica::offset_of(plan.layout, piece);
    const bool wide = plan.layout.entries()[piece.entry].dtype == DType::kFloat64;
    wide ? add_piece(double{}, offset, piece.count) : add_piece(float{}, offset, piece.count);
  }
}

SharedTraining::Gradient SharedTraining::sum(const Gradient& last) const {
  Gradient sum;
  sum.values = model_.course().sum();
  sum.buffers = last.buffers;
  return sum;
}

replica::GradientSource SharedTraining::source_of(const Gradient& gradient, double divisor) const {
  auto source = replica::GradientSource::of(trained_.model->averages(), trained_.model->layout());
  source.operands = {gradient.values};
  source.factor = 1 / divisor;
  source.limit = trained_.extras.clip_value;
  if (trained_.extras.clip_norm == 0) return source;
  const double norm = norm_of(source, trained_.extras.clipped);
  if (!std::isfinite(norm))
    throw BadInput(
        fmt::format("the norm of a gradient is {}: training has diverged; lower the "
                    "learning rate or warm it up",
                    norm));
  source.factor *= std::min(trained_.extras.clip_norm / (norm + 1e-6), 1.0);  // as clip_grad_norm_
  return source;
}

// By pieces, which do not depend on threads.
double SharedTraining::norm_of(const replica::GradientSource& source, optim::Norm norm) const {
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

void SharedTraining::apply(const Gradient& gradient, const Update& update) {
  const replica::ModelPlan& plan = trained_.model->parts().plan;
  const auto state = model_.state_after();  // by memory, then by entry
  const std::size_t entries = plan.layout.entries().size();
  const ScaledRates scaled(trained_.groups, update.rate);
  const replica::GradientSource source = source_of(gradient, update.divisor);
  replica::for_each_piece(
      {plan, {0, plan.pieces.all.size()}}, source,
      [&](std::size_t number, replica::GradientReader& reader) {
        const plan::Stretch& piece = plan.pieces.all[number];
        const std::size_t offset = replica::offset_of(plan.layout, piece);
        const std::size_t first = piece.first * size_of(reader.dtype());
        flat::Elements elements;
        elements.dtype = reader.dtype();
        elements.count = piece.count;
        elements.parameter = model_.course().weights() + offset;
        elements.gradient = reader.read(piece);
        std::vector<double> compensated;  // double for the alignment
        if (gradient.weights != nullptr) {
          compensated.resize(piece.count);
          std::memcpy(compensated.data(), elements.gradient, piece.count * size_of(reader.dtype()));
          const auto add = [&](auto zero) {
            using T = decltype(zero);
            compensate(delay_compensation_, static_cast<const T*>(elements.parameter),
                       reinterpret_cast<const T*>(gradient.weights + offset), piece.count,
                       reinterpret_cast<T*>(compensated.data()));
          };
          reader.dtype() == DType::kFloat64 ? add(double{}) : add(float{});
          elements.gradient = compensated.data();
        }
        for (std::size_t memory = 0; memory < trained_.state.count(); ++memory) {
          const torch::Tensor& values = state[memory * entries + piece.entry];
          elements.state[trained_.state.state_of(memory)] =
              static_cast<std::byte*>(values.data_ptr()) + first;
        }
        trained_.groups.rule_of(piece.entry).update(elements, {.number = update.number});
      });
  give_buffers(gradient.buffers);
}

}  // namespace lockstep::steps

#include "torch/step/shared_training.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "torch/optim/impl.h"
#include "torch/replica/replicated.h"
#include "torch/replica/tensors.h"

namespace lockstep::steps {
namespace {

optim::Trained& trained_of(const LocalModel& model) {
  return optim::inside(const_cast<LocalModel&>(model).inner()).trained;
}

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

template <typename T>
double squares(const T* values, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i)
    sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return sum;
}

template <typename T>
double largest(const T* values, std::size_t count) {
  double most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double magnitude = std::abs(static_cast<double>(values[i]));
    if (!(magnitude <= most)) most = magnitude;  // also if it is not a number
  }
  return most;
}

}  // namespace

SharedTraining::SharedTraining(LocalModel& model, double delay_compensation)
    : model_(model), delay_compensation_(delay_compensation) {
  const optim::Trained& trained = trained_of(model_);
  const auto& entries = trained.model->layout().entries();
  for (std::size_t entry = 0; entry < entries.size(); ++entry) {
    const torch::Tensor& like = trained.parameter(entry);
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
  const optim::Trained& trained = trained_of(model_);
  for (std::size_t entry = 0; entry < weights_.size(); ++entry)
    weights_[entry].copy_(trained.parameter(entry));
  const auto before = model_.state_before();
  const auto state = model_.state_after();
  for (std::size_t i = 0; i < state.size(); ++i) state[i].copy_(before[i]);
  give_buffers(replica::pack(trained.model->model().buffers));
}

void SharedTraining::take() {
  torch::NoGradGuard no_grad;
  const optim::Trained& trained = trained_of(model_);
  for (std::size_t entry = 0; entry < weights_.size(); ++entry)
    trained.parameter(entry).detach().copy_(weights_[entry]);
  const auto& buffers = trained.model->model().buffers;
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : buffers) bytes += tensor.nbytes();
  const std::byte* const shared = model_.course().buffers();
  replica::unpack({shared, shared + bytes}, buffers);
}

void SharedTraining::give_buffers(const std::vector<std::byte>& buffers) {
  std::copy(buffers.begin(), buffers.end(), model_.course().buffers());
}

SharedTraining::Gradient SharedTraining::gradient() {
  const optim::Trained& trained = trained_of(model_);
  trained.model->settle();
  Gradient gradient;
  gradient.values = trained.model->averages().data();
  if (delay_compensation_ > 0) gradient.weights = trained.model->parts().parameters->seen().data();
  gradient.buffers = replica::pack(trained.model->model().buffers);
  return gradient;
}

void SharedTraining::keep(Gradient& gradient) const {
  const std::size_t bytes = trained_of(model_).model->layout().bytes();
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
  const replica::ModelPlan& plan = trained_of(model_).model->parts().plan;
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
  const optim::Trained& trained = trained_of(model_);
  auto source = replica::GradientSource::of(trained.model->averages(), trained.model->layout());
  source.operands = {gradient.values};
  source.factor = 1 / divisor;
  source.limit = trained.extras.clip_value;
  if (trained.extras.clip_norm == 0) return source;
  const double norm = norm_of(source, trained.extras.clipped == optim::Norm::kLargest);
  if (!std::isfinite(norm))
    throw BadInput(
        fmt::format("the norm of a gradient is {}: training has diverged; lower the "
                    "learning rate or warm it up",
                    norm));
  source.factor *= std::min(trained.extras.clip_norm / (norm + 1e-6), 1.0);  // as clip_grad_norm_
  return source;
}

// By pieces, which do not depend on threads.
double SharedTraining::norm_of(const replica::GradientSource& source, bool largest_one) const {
  const replica::ModelPlan& plan = trained_of(model_).model->parts().plan;
  std::vector<double> of_pieces(plan.pieces.all.size());
  const auto measure = [&](const auto* values, std::size_t count) {
    return largest_one ? largest(values, count) : squares(values, count);
  };
  replica::for_each_piece({plan, {0, of_pieces.size()}}, source,
                          [&](std::size_t number, replica::GradientReader& reader) {
                            const plan::Stretch& piece = plan.pieces.all[number];
                            const void* const values = reader.read(piece);
                            of_pieces[number] =
                                reader.dtype() == DType::kFloat64
                                    ? measure(static_cast<const double*>(values), piece.count)
                                    : measure(static_cast<const float*>(values), piece.count);
                          });
  if (largest_one) return largest(of_pieces.data(), of_pieces.size());
  double sum = 0;
  for (const double of_piece : of_pieces) sum += of_piece;
  return std::sqrt(sum);
}

void SharedTraining::apply(const Gradient& gradient, const Update& update) {
  optim::Trained& trained = trained_of(model_);
  const replica::ModelPlan& plan = trained.model->parts().plan;
  const auto state = model_.state_after();  // by memory, then by entry
  const std::size_t entries = plan.layout.entries().size();
  const ScaledRates scaled(trained.groups, update.rate);
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
        for (std::size_t memory = 0; memory < trained.state.count(); ++memory) {
          const torch::Tensor& values = state[memory * entries + piece.entry];
          elements.state[trained.state.state_of(memory)] =
              static_cast<std::byte*>(values.data_ptr()) + first;
        }
        trained.groups.rule_of(piece.entry).update(elements, {.number = update.number});
      });
  give_buffers(gradient.buffers);
}

}  // namespace lockstep::steps

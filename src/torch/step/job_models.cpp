#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>

#include "torch/step/job_core.h"

namespace lockstep::steps {

void JobModels::add(const StepCore& step) {
  const auto know = [&](const ModelView& model) {
    if (std::find(all.begin(), all.end(), model) == all.end()) all.push_back(model);
  };
  for (std::size_t i = 0; i < step.optimizers.size(); ++i) {
    optim::Optimizer* const optimizer = step.optimizers[i];
    const ModelView model(*optimizer);
    know(model);
    const auto found = std::find_if(trained.begin(), trained.end(),
                                    [&](const Trained& known) { return known.model == model; });
    const bool averages = static_cast<bool>(step.options.before_update);
    if (found == trained.end()) {
      trained.push_back(
          {optimizer, model, averages, step.locals.empty() ? nullptr : step.locals[i]});
    } else if (found->optimizer != optimizer) {
      throw BadInput(fmt::format(
          "two optimizers of the job train one model ({}): give all its Steps the same optimizer",
          model.name()));
    } else {
      found->averages = found->averages || averages;
    }
  }
  add_scaler(step);
  for (const Replica* const model : step.options.models) {
    if (model == nullptr)
      throw BadInput(fmt::format("StepOptions::models of the Step {} has a null", step.name));
    know(ModelView(*model));
  }
}

// A scaler of several Steps has one state.
void JobModels::add_scaler(const StepCore& step) {
  GradScaler* const scaler = step.options.scaler;
  if (scaler == nullptr || !scaler->options().enabled) return;
  for (optim::Optimizer* const optimizer : step.optimizers) {
    const ModelView model(*optimizer);
    if (model.keeps_codec_state()) {
      throw BadInput(fmt::format(
          "the Step {} has a scaler, and its model the codec {} with error feedback, which would "
          "keep what has overflowed: leave one of them out, or choose bf16, fp16 or int8:plain",
          step.name, model.codec()->name()));
    }
    for (const torch::Tensor& tensor : model.trained()) {
      if (tensor.scalar_type() != torch::kFloat64) continue;
      throw BadInput(fmt::format(
          "the Step {} has a scaler, which is for float32 and half types, and trains float64 "
          "parameters: leave the scaler out",
          step.name));
    }
  }
  const auto is_same = [&](const Scaled& other) { return other.scaler == scaler; };
  if (std::none_of(scaled.begin(), scaled.end(), is_same)) scaled.push_back({step.name, scaler});
}

JobState JobModels::named_state() const {
  JobState state;
  const auto name_of = [&](const ModelView& model) {
    if (!model.name().empty()) return model.name();
    const auto number = std::find(all.begin(), all.end(), model) - all.begin();
    return fmt::format("model{}", number);
  };
  for (const ModelView& model : all) {
    const auto found = std::find_if(trained.begin(), trained.end(),
                                    [&](const Trained& one) { return one.model == model; });
    const bool local = found != trained.end() && found->local;
    state.add_model(name_of(model), local ? found->local->weights() : model.parameters(),
                    model.buffers());
  }
  for (const Trained& one : trained) {
    one.local ? state.add_local(name_of(one.model), *one.local)
              : state.add_optimizer(name_of(one.model), *one.optimizer);
  }
  for (const Trained& one : trained) {
    if (one.model.keeps_codec_state()) state.add_codec(name_of(one.model), one.model.codec_state());
  }
  for (const auto& [name, scaler] : scaled) state.add_scaler(name, *scaler);
  for (const auto& [name, tensor] : kept) state.keep(name, tensor);
  return state;
}

}  // namespace lockstep::steps

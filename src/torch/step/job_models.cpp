#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <utility>

#include "torch/step/job_core.h"

namespace lockstep::steps {

void JobModels::add(const StepCore& step) {
  const auto know = [&](const ModelView& model) {
    if (std::find(all.begin(), all.end(), model) == all.end()) all.push_back(model);
  };
  for (optim::Optimizer* const optimizer : step.optimizers) {
    const ModelView model(*optimizer);
    know(model);
    const auto found = std::find_if(trained.begin(), trained.end(),
                                    [&](const Trained& known) { return known.model == model; });
    const bool averages = static_cast<bool>(step.options.before_update);
    if (found == trained.end()) {
      trained.push_back({optimizer, model, averages});
      for (const auto& local : step.locals) {
        const auto fragment = local->fragment_of(*optimizer);
        if (!fragment) continue;
        trained.back().local = local;
        trained.back().fragment = *fragment;
      }
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

std::vector<ModelView> JobModels::with_inner() const {
  std::vector<ModelView> models = all;
  for (const Trained& one : trained) {
    if (one.local && one.is_first_fragment()) models.emplace_back(one.local->inner());
  }
  return models;
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
    const auto found = std::find_if(trained.begin(), trained.end(),
                                    [&](const Trained& one) { return one.model == model; });
    const bool local = found != trained.end() && found->local;
    const std::string name = local ? found->local->name() : model.name();
    if (!name.empty()) return name;
    const auto number = std::find(all.begin(), all.end(), model) - all.begin();
    return fmt::format("model{}", number);
  };
  for (const ModelView& model : all) {
    const auto found = std::find_if(trained.begin(), trained.end(),
                                    [&](const Trained& one) { return one.model == model; });
    const bool local = found != trained.end() && found->local;
    if (local && !found->is_first_fragment()) continue;
    state.add_model(name_of(model), local ? found->local->weights() : model.parameters(),
                    model.buffers());
  }
  for (const Trained& one : trained) {
    if (!one.is_first_fragment()) continue;
    one.local ? state.add_local(name_of(one.model), *one.local)
              : state.add_optimizer(name_of(one.model), *one.optimizer);
  }
  for (const Trained& one : trained) {
    if (!one.model.keeps_codec_state()) continue;
    const bool is_part = one.local && one.local->is_streamed();
    state.add_codec(is_part ? one.model.name() : name_of(one.model), one.model.codec_state());
  }
  for (const auto& [name, scaler] : scaled) state.add_scaler(name, *scaler);
  for (const auto& [name, tensor] : kept) state.keep(name, tensor);
  return state;
}

// From here on the Step's optimizers are the outer ones.
void JobCore::make_local(StepCore& step) {
  const auto refuse = [&](const char* why) {
    throw BadInput(fmt::format("the Step {} cannot take local steps: {}", step.name, why));
  };
  const StepOptions& options = step.options;
  if (!steps_.empty()) refuse("a job with local steps has one Step");
  if (options.before_update) refuse("leave before_update out; no gradients are averaged");
  if (options.weight) refuse("leave out the function of weights: shards count by their samples");
  if (options.scaler != nullptr && options.scaler->options().enabled)
    refuse("leave the loss scaler out; bfloat16 needs none");
  if (options.noise_scale_every != 0) refuse("leave the noise scale out: it compares gradients");
  if (setup_.options.local_steps.asynchronous && step.optimizers.size() > 1)
    refuse("an asynchronous job has one optimizer");
  const std::vector<optim::Optimizer*> given = std::exchange(step.optimizers, {});
  for (optim::Optimizer* const optimizer : given) {
    step.locals.push_back(LocalModel::make(generation_.world, *optimizer,
                                           setup_.options.local_steps, generation_.shards));
    for (optim::Optimizer* const outer : step.locals.back()->outers())
      step.optimizers.push_back(outer);
  }
}

}  // namespace lockstep::steps

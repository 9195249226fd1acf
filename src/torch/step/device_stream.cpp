#include "torch/step/model_step.h"

namespace lockstep::train {

StreamOfModels::StreamOfModels(std::vector<ModelView> models) : models_(std::move(models)) {
  if (models_.empty() || models_.front().device().kind == DeviceKind::kCpu) return;
  stream_.emplace(models_.front().device());
  for (const ModelView& model : models_) model.state_->attachment().install_hooks();
}

StreamOfModels::~StreamOfModels() {
  if (!stream_) return;
  stream_.reset();
  for (const ModelView& model : models_) model.state_->attachment().install_hooks();
}

}  // namespace lockstep::train

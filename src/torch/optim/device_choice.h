// What of an optimizer depends on where its model is.
#pragma once

#include <memory>

#include "torch/optim/update.h"

namespace lockstep::optim {

// Whether half parameters have float32 masters there.
bool wants_masters(const replica::Parts& model);

// Whether a sample of the gradients costs nothing.
bool can_sample(const replica::Replicated& model);

std::unique_ptr<Update> make_update(Trained& trained);

}  // namespace lockstep::optim

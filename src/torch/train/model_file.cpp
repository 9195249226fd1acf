#include <lockstep/checkpoint.h>

#include "torch/replica/model.h"
#include "torch/step/leader.h"
#include "torch/step/model_step.h"
#include "torch/step/tensor_file.h"

namespace lockstep {

void save(const Replica& model, const std::string& path) {
  steps::write_tensors(path, steps::ModelView(model).everything(), {});
}

void save(const torch::nn::Module& module, const std::string& path) {
  const auto model = replica::sort_all(replica::parameters_of(module), replica::buffers_of(module));
  steps::write_tensors(path, model.everything(), {});
}

void load(Replica& model, const std::string& path) {
  steps::ModelView view(model);
  Comm& comm = view.comm();
  const auto tensors = view.everything();
  comm.barrier().wait();  // where workers share memory, nobody computes with it any more
  steps::from_leader(comm, [&]() -> std::string {
    const auto file = formats::SafetensorsFile::open(path);
    file.verify();
    steps::read_tensors(file, tensors);
    return "";
  });
  replica::copy_from(comm, 0, tensors);
  view.note_update();
}

void load(torch::nn::Module& module, const std::string& path) {
  const auto model = replica::sort_all(replica::parameters_of(module), replica::buffers_of(module));
  const auto file = formats::SafetensorsFile::open(path);
  file.verify();
  steps::read_tensors(file, model.everything());
}

}  // namespace lockstep

#include "torch/step/commit_page.h"

namespace lockstep::steps {

std::unique_ptr<CommitPage> make_commit_page(Comm& comm, const CommitPage::Shape& shape,
                                             Device device) {
  if (device.kind != DeviceKind::kCpu) return nullptr;
  return std::make_unique<CommitPage>(comm, shape);
}

}  // namespace lockstep::steps

#include "torch/replica/gather.h"

namespace lockstep::replica {

std::shared_ptr<Gather> make_gather(const plan::Layout&, const plan::Pieces&, Device) {
  return nullptr;
}

}  // namespace lockstep::replica

#include "flat/update_kernel.h"

namespace lockstep::flat {

template void launch_update<element::Sgd, true>(const UpdateTask&, cudaStream_t);
template void launch_update<element::Adam, true>(const UpdateTask&, cudaStream_t);

}  // namespace lockstep::flat

#include "flat/update_kernel.h"

namespace lockstep::flat {

template void launch_update<element::Sgd, false>(const UpdateTask&, cudaStream_t);
template void launch_update<element::Adam, false>(const UpdateTask&, cudaStream_t);

}  // namespace lockstep::flat

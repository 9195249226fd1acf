#include "flat/update_kernel.h"

namespace lockstep::flat {

template void launch_update<element::Amsgrad, true>(const UpdateTask&, cudaStream_t);
template void launch_update<element::RmsProp, true>(const UpdateTask&, cudaStream_t);
template void launch_update<element::Adagrad, true>(const UpdateTask&, cudaStream_t);

}  // namespace lockstep::flat

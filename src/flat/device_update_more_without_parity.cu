#include "flat/update_kernel.h"

namespace lockstep::flat {

template void launch_update<element::Amsgrad, false>(const UpdateTask&, cudaStream_t);
template void launch_update<element::RmsProp, false>(const UpdateTask&, cudaStream_t);
template void launch_update<element::Adagrad, false>(const UpdateTask&, cudaStream_t);

}  // namespace lockstep::flat

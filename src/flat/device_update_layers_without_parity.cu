#include "flat/update_kernel.h"

namespace lockstep::flat {

template void launch_update<element::Lars, false>(const UpdateTask&, cudaStream_t);
template void launch_update<element::Lamb, false>(const UpdateTask&, cudaStream_t);

}  // namespace lockstep::flat

#include "flat/update_kernel.h"

namespace lockstep::flat {

template void launch_update<element::Lars, true>(const UpdateTask&, cudaStream_t);
template void launch_update<element::Lamb, true>(const UpdateTask&, cudaStream_t);

}  // namespace lockstep::flat

// NCCL's functions, looked up when the engine is first used: a program that uses no GPU does not load a library of hundreds of megabytes,
// and runs where there is none. RCCL has the same functions.
#pragma once

#include "flat/cuda/runtime.h"
#if defined(LOCKSTEP_RCCL)
#include <rccl/rccl.h>
#else
#include <nccl.h>
#endif

namespace lockstep::comm {

struct NcclLibrary {
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config;
  decltype(&ncclCommGetAsyncError) comm_get_async_error;
  decltype(&ncclGetLastError) get_last_error;
  decltype(&ncclGetErrorString) get_error_string;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) recv;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclMemAlloc) mem_alloc;
  decltype(&ncclMemFree) mem_free;
  decltype(&ncclCommRegister) comm_register;
  decltype(&ncclCommDeregister) comm_deregister;
  decltype(&ncclCommFinalize) comm_finalize;
  decltype(&ncclCommDestroy) comm_destroy;
  decltype(&ncclCommAbort) comm_abort;
};

// Unavailable, saying what to install.
const NcclLibrary& nccl_library();

}  // namespace lockstep::comm

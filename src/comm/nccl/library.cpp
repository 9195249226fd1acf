#include "comm/nccl/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <lockstep/errors.h>

namespace lockstep::comm {
namespace {

#if defined(LOCKSTEP_RCCL)
constexpr const char* kName = "librccl.so.1";
#else
constexpr const char* kName = "libnccl.so.2";
#endif

// The one that the process has already, else the system's, else the one that this was built with.
void* open_library() {
  for (const int flags : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW}) {
    if (void* library = ::dlopen(kName, flags)) return library;
  }
  if (void* library = ::dlopen(LOCKSTEP_NCCL_LIBRARY, RTLD_NOW)) return library;
  throw Unavailable(fmt::format(
      "the nccl engine needs {}; install NCCL, or set LD_LIBRARY_PATH ({})", kName, ::dlerror()));
}

template <typename Function>
void look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    throw Unavailable(fmt::format("{} has no {}; install NCCL 2.19 or newer", kName, name));
  }
}

NcclLibrary load() {
  void* library = open_library();
  NcclLibrary found{};
  look_up(library, "ncclGetUniqueId", found.get_unique_id);
  look_up(library, "ncclCommInitRankConfig", found.comm_init_rank_config);
  look_up(library, "ncclCommGetAsyncError", found.comm_get_async_error);
  look_up(library, "ncclGetLastError", found.get_last_error);
  look_up(library, "ncclGetErrorString", found.get_error_string);
  look_up(library, "ncclGroupStart", found.group_start);
  look_up(library, "ncclGroupEnd", found.group_end);
  look_up(library, "ncclSend", found.send);
  look_up(library, "ncclRecv", found.recv);
  look_up(library, "ncclBroadcast", found.broadcast);
  look_up(library, "ncclAllReduce", found.all_reduce);
  look_up(library, "ncclMemAlloc", found.mem_alloc);
  look_up(library, "ncclMemFree", found.mem_free);
  look_up(library, "ncclCommRegister", found.comm_register);
  look_up(library, "ncclCommDeregister", found.comm_deregister);
  look_up(library, "ncclCommFinalize", found.comm_finalize);
  look_up(library, "ncclCommDestroy", found.comm_destroy);
  look_up(library, "ncclCommAbort", found.comm_abort);
  return found;
}

}  // namespace

const NcclLibrary& nccl_library() {
  static const NcclLibrary library = load();
  return library;
}

}  // namespace lockstep::comm

// NcclApi over the real libraries, CUDA and NCCL.
#include <dlfcn.h>
#include <fmt/format.h>
#include <lockstep/errors.h>

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"
#include "comm/nccl/nccl_engine.h"
#include "flat/cuda/handles.h"
#include "flat/tree_program.h"
#if defined(LOCKSTEP_RCCL)
#include <rccl/rccl.h>
#else
#include <nccl.h>
#endif

namespace lockstep::comm {
namespace {

// NCCL's functions. They are looked up when the engine is first used. So a program that uses no GPU
// does not load a library of hundreds of megabytes, and runs on hosts without it. RCCL has the same
// functions.
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

#if defined(LOCKSTEP_RCCL)
constexpr const char* kName = "librccl.so.1";
#else
constexpr const char* kName = "libnccl.so.2";
#endif

// The library that the process has loaded already, else the system's, else the one of the build.
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

// Throws Unavailable, with what to install.
const NcclLibrary& nccl_library() {
  static const NcclLibrary library = load();
  return library;
}

using cuda::check;

cudaStream_t as_stream(StreamHandle stream) {
  return static_cast<cudaStream_t>(stream);
}
// Events are kept and used again, because making one takes as long as recording it.
struct PooledEvent {
  cuda::Event event;
  int device = 0;
};
cudaEvent_t as_event(EventHandle event) {
  return static_cast<PooledEvent*>(event)->event.get();
}
ncclComm_t as_comm(NcclHandle handle) {
  return static_cast<ncclComm_t>(handle);
}

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kFloat64:
      return ncclFloat64;
    case DType::kFloat16:
      return ncclFloat16;
    case DType::kBFloat16:
      return ncclBfloat16;
    case DType::kInt32:
      return ncclInt32;
    case DType::kInt64:
      return ncclInt64;
    case DType::kUInt8:
      break;
  }
  return ncclUint8;
}

ncclRedOp_t op_of(ReduceOp op) {
  if (op == ReduceOp::kMin) return ncclMin;
  return op == ReduceOp::kMax ? ncclMax : ncclSum;
}

// The calls of CUDA.
class Cuda : public NcclApi {
 public:
  int devices() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  int current_device() override {
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    return device;
  }
  void choose_device(int device) override { check(cudaSetDevice(device), "cudaSetDevice"); }
  bool is_memory_of(const void* data, int device) override {
    cudaPointerAttributes attributes{};
    if (cudaPointerGetAttributes(&attributes, data) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    return attributes.type == cudaMemoryTypeManaged ||
           (attributes.type == cudaMemoryTypeDevice && attributes.device == device);
  }

  StreamHandle make_stream() override { return cuda::make_stream().release(); }
  void destroy_stream(StreamHandle stream) noexcept override {
    static_cast<void>(cudaStreamDestroy(as_stream(stream)));
  }
  bool is_idle(StreamHandle stream) override {
    return is_ready(cudaStreamQuery(as_stream(stream)), "cudaStreamQuery");
  }
  EventHandle make_event() override {
    const int device = current_device();
    {
      const base::Lock lock(events_mutex_);
      auto& pool = events_[device];
      if (!pool.empty()) {
        PooledEvent* const event = pool.back().release();
        pool.pop_back();
        return event;
      }
    }
    auto event = std::make_unique<PooledEvent>();
    event->event = cuda::make_event();
    event->device = device;
    return event.release();
  }
  // The event goes back to the pool and may be recorded again. A stream that waits for it already
  // waits for the earlier record, so this is safe.
  void destroy_event(EventHandle handle) noexcept override {
    std::unique_ptr<PooledEvent> event(static_cast<PooledEvent*>(handle));
    const base::Lock lock(events_mutex_);
    auto& pool = events_[event->device];
    pool.push_back(std::move(event));
  }
  void record(EventHandle event, StreamHandle stream) override {
    check(cudaEventRecord(as_event(event), as_stream(stream)), "cudaEventRecord");
  }
  bool has_come(EventHandle event) override {
    return is_ready(cudaEventQuery(as_event(event)), "cudaEventQuery");
  }
  void make_wait(StreamHandle stream, EventHandle event) override {
    check(cudaStreamWaitEvent(as_stream(stream), as_event(event), 0), "cudaStreamWaitEvent");
  }

  void* take(std::size_t bytes, StreamHandle stream) override {
    void* data = nullptr;
    check(cudaMallocAsync(&data, bytes, as_stream(stream)), "cudaMallocAsync");
    return data;
  }
  void release(void* data, StreamHandle stream) noexcept override {
    static_cast<void>(cudaFreeAsync(data, as_stream(stream)));
  }
  void copy(void* to, const void* from, std::size_t bytes, StreamHandle stream) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, as_stream(stream)),
          "cudaMemcpyAsync");
  }
  void sum(const flat::SumTask& task, StreamHandle stream) override {
    flat::queue_tree_sum(task, stream);
  }

 private:
  base::Mutex events_mutex_;
  // By device.
  std::map<int, std::vector<std::unique_ptr<PooledEvent>>> events_
      LOCKSTEP_GUARDED_BY(events_mutex_);

  static bool is_ready(cudaError_t result, const char* call) {
    if (result == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());  // or a later call would report it as an error
      return false;
    }
    check(result, call);
    return true;
  }
};

// And the calls of NCCL.
class CudaNccl : public Cuda {
 public:
  CudaNccl() : nccl_(nccl_library()) {}

  void* take_arena(std::size_t bytes) override {
    void* data = nullptr;
    if (nccl_.mem_alloc(&data, bytes) == ncclSuccess) {
      const base::Lock lock(mutex_);
      nccl_memory_.insert(data);
      return data;
    }
    static_cast<void>(cudaGetLastError());
    check(cudaMalloc(&data, bytes), "cudaMalloc");
    return data;
  }
  void release_arena(void* data) noexcept override {
    bool of_nccl = false;
    {
      const base::Lock lock(mutex_);
      of_nccl = nccl_memory_.erase(data) > 0;
    }
    // What was queued before may still use it. If the device hangs, the watchdog ends that.
    static_cast<void>(cudaDeviceSynchronize());
    of_nccl ? static_cast<void>(nccl_.mem_free(data)) : static_cast<void>(cudaFree(data));
  }

  std::string make_id() override {
    ncclUniqueId id{};
    const ncclResult_t result = nccl_.get_unique_id(&id);
    if (result != ncclSuccess) fail("ncclGetUniqueId", result, nullptr);
    return {id.internal, sizeof id.internal};
  }
  NcclHandle join(const std::string& text, int rank, int size) override {
    ncclUniqueId id{};
    std::memcpy(id.internal, text.data(), sizeof id.internal);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    const ncclResult_t result = nccl_.comm_init_rank_config(&comm, size, id, rank, &config);
    if ((result != ncclSuccess && result != ncclInProgress) || comm == nullptr)
      fail("ncclCommInitRankConfig", result, comm);
    return comm;
  }
  NcclState state(NcclHandle handle) override {
    ncclResult_t now = ncclSuccess;
    const ncclResult_t asked = nccl_.comm_get_async_error(as_comm(handle), &now);
    if (asked != ncclSuccess) now = asked;
    if (now == ncclSuccess) return {};
    if (now == ncclInProgress) return {NcclState::Progress::kUnderWay};
    return {NcclState::Progress::kFailed, words(now, as_comm(handle)),
            now == ncclRemoteError || now == ncclSystemError};
  }

  void begin_group() override {
    first_error = ncclSuccess;
    keep(nccl_.group_start());
  }
  void end_group(NcclHandle handle) override {
    keep(nccl_.group_end());
    // state() reports failures of the communicator. Any other error is a wrong call.
    if (first_error == ncclSuccess || state(handle).failed()) return;
    fail("ncclGroupEnd", first_error, as_comm(handle));
  }
  void send(NcclHandle handle, int peer, const void* data, std::size_t bytes,
            StreamHandle stream) override {
    keep(nccl_.send(data, bytes, ncclUint8, peer, as_comm(handle), as_stream(stream)));
  }
  void recv(NcclHandle handle, int peer, void* data, std::size_t bytes,
            StreamHandle stream) override {
    keep(nccl_.recv(data, bytes, ncclUint8, peer, as_comm(handle), as_stream(stream)));
  }
  void broadcast(NcclHandle handle, int root, void* data, std::size_t bytes,
                 StreamHandle stream) override {
    keep(nccl_.broadcast(data, data, bytes, ncclUint8, root, as_comm(handle), as_stream(stream)));
  }
  void all_reduce(NcclHandle handle, const Buffer& data, ReduceOp op,
                  StreamHandle stream) override {
    keep(nccl_.all_reduce(data.data, data.data, data.count, type_of(data.dtype), op_of(op),
                          as_comm(handle), as_stream(stream)));
  }

  void* register_memory(NcclHandle handle, void* data, std::size_t bytes) noexcept override {
    void* registration = nullptr;
    const auto result = nccl_.comm_register(as_comm(handle), data, bytes, &registration);
    return result == ncclSuccess ? registration : nullptr;
  }
  void deregister_memory(NcclHandle handle, void* registration) noexcept override {
    static_cast<void>(nccl_.comm_deregister(as_comm(handle), registration));
  }
  void finalize(NcclHandle handle) override {
    static_cast<void>(nccl_.comm_finalize(as_comm(handle)));
  }
  void destroy(NcclHandle handle) noexcept override {
    static_cast<void>(nccl_.comm_destroy(as_comm(handle)));
  }
  void abort(NcclHandle handle) noexcept override {
    static_cast<void>(nccl_.comm_abort(as_comm(handle)));
  }

 private:
  static void keep(ncclResult_t result) {
    if (result != ncclSuccess && result != ncclInProgress && first_error == ncclSuccess)
      first_error = result;
  }
  std::string words(ncclResult_t result, ncclComm_t comm) const {
    const char* last = nccl_.get_last_error(comm);
    return fmt::format("NCCL: {}{}{}", nccl_.get_error_string(result),
                       last != nullptr && *last != 0 ? ": " : "", last != nullptr ? last : "");
  }
  [[noreturn]] void fail(const char* call, ncclResult_t result, ncclComm_t comm) const {
    throw Unavailable(fmt::format("the GPU cannot be used: {}: {}", call, words(result, comm)));
  }

  static thread_local ncclResult_t first_error;  // of the group that this thread has begun

  const NcclLibrary& nccl_;
  base::Mutex mutex_;
  std::set<void*> nccl_memory_ LOCKSTEP_GUARDED_BY(mutex_);
};

thread_local ncclResult_t CudaNccl::first_error = ncclSuccess;

}  // namespace

bool nccl_built() {
  return true;
}

std::shared_ptr<NcclApi> load_nccl() {
  static const std::shared_ptr<NcclApi> api = std::make_shared<CudaNccl>();
  return api;
}

}  // namespace lockstep::comm

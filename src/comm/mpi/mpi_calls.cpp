// Compiled once for OpenMPI and once for MPICH. LOCKSTEP_MPI_CALLS is the function that it defines.
#include "comm/mpi/mpi_calls.h"

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <dlfcn.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <mpi.h>

#include <string>
#include <utility>

#include "base/mutex.h"

namespace lockstep::comm {
namespace {

#if defined(OPEN_MPI)
constexpr const char* kName = "OpenMPI";
constexpr const char* kLibraries[] = {"libmpi.so.40"};
#else
constexpr const char* kName = "MPICH";
constexpr const char* kLibraries[] = {"libmpich.so.12", "libmpi.so.12"};
#endif

// The library of the program, if it uses MPI itself, else the system's. OpenMPI loads parts of
// itself, which look for its symbols among those of the program.
void* open_library() {
  if (::dlsym(RTLD_DEFAULT, "MPI_Init_thread") != nullptr) return RTLD_DEFAULT;
  std::string why;
  for (const char* library : kLibraries) {
    if (void* opened = ::dlopen(library, RTLD_NOW | RTLD_GLOBAL)) return opened;
    why = ::dlerror();
  }
  throw Unavailable(fmt::format(
      "the mpi engine cannot load {}; install it, or set LD_LIBRARY_PATH ({})", kName, why));
}

void* look_up(void* library, const char* name) {
  if (void* found = ::dlsym(library, name)) return found;
  throw Unavailable(fmt::format("{} has no {}; install a newer one", kName, name));
}

// LOCKSTEP_MPI_FUNCTION(Isend): a member `Isend` with the type of MPI_Isend.
// NOLINTBEGIN(bugprone-macro-parentheses): `name` is what is declared
#define LOCKSTEP_MPI_FUNCTION(name) \
  decltype(&MPI_##name) name =      \
      reinterpret_cast<decltype(&MPI_##name)>(look_up(library, "MPI_" #name))
// NOLINTEND(bugprone-macro-parentheses)

struct Functions {
  void* library = open_library();
  LOCKSTEP_MPI_FUNCTION(Initialized);
  LOCKSTEP_MPI_FUNCTION(Finalized);
  LOCKSTEP_MPI_FUNCTION(Init_thread);
  LOCKSTEP_MPI_FUNCTION(Query_thread);
  LOCKSTEP_MPI_FUNCTION(Finalize);
  LOCKSTEP_MPI_FUNCTION(Comm_rank);
  LOCKSTEP_MPI_FUNCTION(Comm_size);
  LOCKSTEP_MPI_FUNCTION(Comm_set_errhandler);
  LOCKSTEP_MPI_FUNCTION(Comm_idup);
  LOCKSTEP_MPI_FUNCTION(Comm_free);
  LOCKSTEP_MPI_FUNCTION(Isend);
  LOCKSTEP_MPI_FUNCTION(Irecv);
  LOCKSTEP_MPI_FUNCTION(Iprobe);
  LOCKSTEP_MPI_FUNCTION(Get_count);
  LOCKSTEP_MPI_FUNCTION(Test);
  LOCKSTEP_MPI_FUNCTION(Error_string);
  // OpenMPI's constants are addresses in its library. The macros would link it.
#if defined(OPEN_MPI)
  MPI_Comm world = static_cast<MPI_Comm>(look_up(library, "ompi_mpi_comm_world"));
  MPI_Datatype byte = static_cast<MPI_Datatype>(look_up(library, "ompi_mpi_byte"));
  MPI_Errhandler errors_return =
      static_cast<MPI_Errhandler>(look_up(library, "ompi_mpi_errors_return"));
#else
  MPI_Comm world = MPI_COMM_WORLD;
  MPI_Datatype byte = MPI_BYTE;
  MPI_Errhandler errors_return = MPI_ERRORS_RETURN;
#endif
};

// What all objects share. The mutex makes MPI_THREAD_SERIALIZED enough.
struct Shared {
  Functions mpi;
  base::Mutex mutex;

  void check(int code, const char* what) const {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    mpi.Error_string(code, text, &length);
    std::string line(text, static_cast<std::size_t>(length));
    for (char& c : line) {
      if (c == '\n') c = ' ';
    }
    throw Unavailable(fmt::format("{}: {}: {}", kName, what, line));
  }
};

constexpr int kTag = 1;  // of all messages; the communicator keeps them apart from others

class Request : public MpiRequest {
 public:
  explicit Request(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  bool done() override {
    if (done_) return true;
    const base::Lock lock(shared_->mutex);
    int flag = 0;
    const int code = shared_->mpi.Test(&request, &flag, MPI_STATUS_IGNORE);
    done_ = flag != 0 || code != MPI_SUCCESS;
    shared_->check(code, what);
    return done_;
  }

  MPI_Request request;
  const char* what = "a message";

 private:
  std::shared_ptr<Shared> shared_;
  bool done_ = false;
};

class Communicator : public MpiCommunicator {
 public:
  explicit Communicator(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {
    auto request = std::make_unique<Request>(shared_);
    request->what = "MPI_Comm_idup";
    const base::Lock lock(shared_->mutex);
    shared_->check(mpi().Comm_idup(mpi().world, &duplicate_, &request->request), "MPI_Comm_idup");
    forming_ = std::move(request);
  }

  bool formed() override {
    if (!forming_) return true;
    if (!forming_->done()) return false;
    forming_.reset();
    const base::Lock lock(shared_->mutex);
    mpi().Comm_set_errhandler(duplicate_, mpi().errors_return);
    return true;
  }

  void free() override {
    const base::Lock lock(shared_->mutex);
    mpi().Comm_free(&duplicate_);
  }

  std::unique_ptr<MpiRequest> send(int peer, const void* data, std::size_t bytes) override {
    auto request = std::make_unique<Request>(shared_);
    request->what = "MPI_Isend";
    const base::Lock lock(shared_->mutex);
    shared_->check(mpi().Isend(data, static_cast<int>(bytes), mpi().byte, peer, kTag, duplicate_,
                               &request->request),
                   "MPI_Isend");
    return request;
  }

  std::unique_ptr<MpiRequest> receive(int peer, void* data, std::size_t bytes) override {
    auto request = std::make_unique<Request>(shared_);
    request->what = "MPI_Irecv";
    const base::Lock lock(shared_->mutex);
    shared_->check(mpi().Irecv(data, static_cast<int>(bytes), mpi().byte, peer, kTag, duplicate_,
                               &request->request),
                   "MPI_Irecv");
    return request;
  }

  std::optional<MpiArrival> arrival() override {
    const base::Lock lock(shared_->mutex);
    int found = 0;
    MPI_Status status;
    shared_->check(mpi().Iprobe(MPI_ANY_SOURCE, kTag, duplicate_, &found, &status), "MPI_Iprobe");
    if (found == 0) return std::nullopt;
    int bytes = 0;
    shared_->check(mpi().Get_count(&status, mpi().byte, &bytes), "MPI_Get_count");
    return MpiArrival{status.MPI_SOURCE, static_cast<std::size_t>(bytes)};
  }

 private:
  const Functions& mpi() const { return shared_->mpi; }

  std::shared_ptr<Shared> shared_;
  MPI_Comm duplicate_{};
  std::unique_ptr<Request> forming_;
};

class Calls : public MpiCalls {
 public:
  const char* name() const override { return kName; }

  bool started() override {
    const base::Lock lock(shared_->mutex);
    int initialized = 0;
    int finalized = 0;
    mpi().Initialized(&initialized);
    mpi().Finalized(&finalized);
    return initialized != 0 && finalized == 0;
  }

  MpiWorld start() override {
    MpiWorld world;
    world.ours = !started();
    const base::Lock lock(shared_->mutex);
    int level = MPI_THREAD_SINGLE;
    if (world.ours) {
      shared_->check(mpi().Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level),
                     "MPI_Init_thread");
      mpi().Comm_set_errhandler(mpi().world, mpi().errors_return);
    } else {
      mpi().Query_thread(&level);
    }
    require(level, world.ours);
    mpi().Comm_rank(mpi().world, &world.rank);
    mpi().Comm_size(mpi().world, &world.size);
    return world;
  }

  void finalize() override {
    const base::Lock lock(shared_->mutex);
    mpi().Finalize();
  }

  std::shared_ptr<MpiCommunicator> duplicate_world() override {
    return std::make_shared<Communicator>(shared_);
  }

 private:
  const Functions& mpi() const { return shared_->mpi; }

  // Our own calls wait for each other. Those of a program that has initialised MPI itself do not
  // wait for ours.
  static void require(int level, bool ours) {
    if (level >= (ours ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE)) return;
    throw Unavailable(
        ours
            ? fmt::format("this {} allows no threads (MPI_THREAD_SERIALIZED), which the mpi engine "
                          "needs; install one that does, or use the engine tcp",
                          kName)
            : std::string("the program has initialised MPI without MPI_THREAD_MULTIPLE, which the "
                          "mpi engine needs beside it; ask for it in MPI_Init_thread, or call "
                          "join() before MPI is initialised"));
  }

  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace

std::unique_ptr<MpiCalls> LOCKSTEP_MPI_CALLS() {
  return std::make_unique<Calls>();
}

}  // namespace lockstep::comm

#include "comm/mpi/mpi_process.h"

#include <lockstep/errors.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <list>
#include <optional>
#include <thread>

#include "base/mutex.h"
#include "comm/mpi/mpi_library.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;

// How long the end of a process waits for MPI_Finalize, which waits for the other processes. A
// launcher kills the others if one ends without it, so those who still say why they end need time.
constexpr milliseconds kFinalizePatience{10'000};
// How often leftovers are asked for.
constexpr milliseconds kSweep{5};

// Never destroyed: a thread that hangs in MPI may use it until the process has ended.
struct Process : MpiProcess {
  enum class State : std::uint8_t { kNew, kStarting, kStarted, kEnding, kEnded };

  const int pid = ::getpid();
  std::unique_ptr<MpiCalls> calls = load_mpi();
  base::Mutex mutex;
  std::condition_variable changed;
  State state LOCKSTEP_GUARDED_BY(mutex) = State::kNew;
  MpiWorld world LOCKSTEP_GUARDED_BY(mutex);
  std::exception_ptr error LOCKSTEP_GUARDED_BY(mutex);
  std::list<MpiLeftover> leftovers LOCKSTEP_GUARDED_BY(mutex);

  // MPI_Finalize may hang at the end of the process: nothing is asked from MPI then.
  bool usable() noexcept override {
    const base::Lock lock(mutex);
    return state == State::kStarted && calls->started();
  }
  void keep(MpiLeftover leftover) noexcept override {
    const base::Lock lock(mutex);
    leftovers.push_back(std::move(leftover));
    changed.notify_all();
  }

  void set(State next) {
    const base::Lock lock(mutex);
    state = next;
    changed.notify_all();
  }

  // Waits for a change. MPI goes on with leftovers only while somebody asks for them.
  void tend(base::Lock& lock) LOCKSTEP_REQUIRES(mutex) {
    if (leftovers.empty()) return lock.wait(changed);
    lock.wait_until(changed, Deadline::Clock::now() + kSweep);
    if (state == State::kStarted && calls->started()) sweep();
  }

  // Frees what MPI is done with.
  void sweep() LOCKSTEP_REQUIRES(mutex) {
    for (MpiLeftover& leftover : leftovers)
      std::erase_if(leftover.requests, [](auto& item) { return done(*item.first); });
    leftovers.remove_if([](const MpiLeftover& leftover) { return leftover.requests.empty(); });
  }

  static bool done(MpiRequest& request) {
    try {
      return request.done();
    } catch (const Error&) {
      return true;
    }
  }
};

Process& process() {
  static auto* const kept = new Process;
  return *kept;
}

// The thread that initialises MPI also finalises it.
void live(Process& own) {
  try {
    const MpiWorld world = own.calls->start();
    const base::Lock lock(own.mutex);
    own.world = world;
  } catch (const Error&) {
    const base::Lock lock(own.mutex);
    own.error = std::current_exception();
  }
  own.set(Process::State::kStarted);
  base::Lock lock(own.mutex);
  while (own.state != Process::State::kEnding) own.tend(lock);
  const bool finalizes = own.world.ours;
  lock.unlock();
  if (finalizes && own.calls->started()) own.calls->finalize();
  own.set(Process::State::kEnded);
}

// A child of fork() has no such thread, and no MPI.
void end_at_exit() {
  Process& own = process();
  if (::getpid() != own.pid) return;
  base::Lock lock(own.mutex);
  if (own.state != Process::State::kStarted) return;
  own.sweep();
  own.state = Process::State::kEnding;
  own.changed.notify_all();
  const auto deadline = Deadline::after(kFinalizePatience);
  while (own.state != Process::State::kEnded && !deadline.expired())
    lock.wait_until(own.changed, deadline.when());
}

}  // namespace

MpiCalls& mpi_of_process() {
  return *process().calls;
}

MpiWorld start_mpi(Deadline deadline) {
  Process& own = process();
  base::Lock lock(own.mutex);
  if (own.state == Process::State::kNew) {
    std::thread(live, std::ref(own)).detach();
    own.state = Process::State::kStarting;
    std::atexit(end_at_exit);
  }
  while (own.state == Process::State::kStarting && !deadline.expired())
    lock.wait_until(own.changed, deadline.when());
  if (own.state == Process::State::kStarting)
    throw Timeout("MPI_Init_thread has not returned: are all processes of the job there?");
  if (own.error) std::rethrow_exception(own.error);
  if (own.state != Process::State::kStarted || !own.calls->started())
    throw Unavailable("MPI was finalised already, and cannot be initialised again");
  return own.world;
}

MpiProcess& mpi_process() {
  return process();
}

}  // namespace lockstep::comm

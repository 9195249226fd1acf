// A world of threads of this process, in one call.
#include <fmt/format.h>
#include <lockstep/bootstrap.h>
#include <lockstep/errors.h>
#include <lockstep/world.h>

#include <condition_variable>
#include <exception>
#include <map>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"

namespace lockstep {
namespace {

// Where the threads of one world meet. It lives in run_threads(), which joins all threads before it returns.
struct Meeting {
  base::Mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string, std::less<>> values LOCKSTEP_GUARDED_BY(mutex);
  std::exception_ptr first_failure LOCKSTEP_GUARDED_BY(mutex);
  std::string name = "lockstep-threads-" + base::to_hex(base::random_bytes(16));
  std::string secret = base::to_hex(base::random_bytes(16));

  void fail(std::exception_ptr failure) {
    const base::Lock lock(mutex);
    if (!first_failure) first_failure = std::move(failure);
    changed.notify_all();
  }
};

// The bootstrap of one thread: keys and values in a map of this process.
class ThreadBootstrap : public Bootstrap {
 public:
  ThreadBootstrap(Meeting& meeting, int rank, int size)
      : meeting_(meeting), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return meeting_.name; }
  std::string secret() const override { return meeting_.secret; }
  void put(std::string_view key, std::string_view value, Deadline /*deadline*/) override {
    const base::Lock lock(meeting_.mutex);
    meeting_.values.emplace(key, value);
    meeting_.changed.notify_all();
  }
  std::string get(std::string_view key, Deadline deadline) override {
    base::Lock lock(meeting_.mutex);
    bool in_time = true;
    while (true) {
      const auto found = meeting_.values.find(key);
      if (found != meeting_.values.end()) return found->second;
      if (meeting_.first_failure) throw PeerLost("another thread has ended with an error");
      if (!in_time)
        throw Timeout(fmt::format("rank {} waits in vain for {} of another thread", rank_, key));
      in_time = lock.wait_until(meeting_.changed, deadline.when());
    }
  }

 private:
  Meeting& meeting_;
  int rank_;
  int size_;
};

// The inner catch notes the failure while the world still exists. The end of the world makes the other threads fail,
// too, and the first failure is the one that run_threads() throws.
void run_worker(Meeting& meeting, int rank, int workers, const std::function<void(World&)>& body,
                std::chrono::milliseconds timeout) {
  try {
    ThreadBootstrap bootstrap(meeting, rank, workers);
    World world = World::over(connect("thread", bootstrap, {.timeout = timeout}));
    try {
      body(world);
    } catch (...) {
      meeting.fail(std::current_exception());
    }
  } catch (...) {
    meeting.fail(std::current_exception());
  }
}

}  // namespace

void run_threads(int workers, const std::function<void(World&)>& body,
                 std::chrono::milliseconds timeout) {
  constexpr int kMost = 4096;
  if (workers < 1 || workers > kMost)
    throw BadInput(fmt::format("run_threads() takes 1 to {} workers, not {}", kMost, workers));
  Meeting meeting;
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(workers));
  for (int rank = 0; rank < workers; ++rank) {
    try {
      threads.emplace_back([&, rank] { run_worker(meeting, rank, workers, body, timeout); });
    } catch (const std::system_error& error) {
      meeting.fail(std::make_exception_ptr(Unavailable(
          fmt::format("this host has no thread for worker {}: {}", rank, error.what()))));
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
  const base::Lock lock(meeting.mutex);
  if (meeting.first_failure) std::rethrow_exception(meeting.first_failure);
}

}  // namespace lockstep

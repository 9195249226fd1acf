// Worlds for tests: N workers as threads of this process, or as processes of their own.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/errors.h>
#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::testing {

// A Bootstrap within one process.
class LocalStore {
 public:
  void put(const std::string& key, const std::string& value);
  std::string get(const std::string& key, Deadline deadline);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

class LocalBootstrap : public Bootstrap {
 public:
  LocalBootstrap(std::shared_ptr<LocalStore> store, std::string name, int rank, int size)
      : store_(std::move(store)), name_(std::move(name)), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return name_; }
  std::string secret() const override { return secret_; }
  void put(std::string_view key, std::string_view value, Deadline) override {
    store_->put(std::string(key), std::string(value));
  }
  std::string get(std::string_view key, Deadline deadline) override {
    return store_->get(std::string(key), deadline);
  }
  void set_secret(std::string secret) { secret_ = std::move(secret); }

 private:
  std::shared_ptr<LocalStore> store_;
  std::string name_;
  int rank_;
  int size_;
  std::string secret_ = "a secret of the tests";
};

// A Bootstrap between processes: files in a folder.
class FolderBootstrap : public Bootstrap {
 public:
  FolderBootstrap(std::string folder, int rank, int size)
      : folder_(std::move(folder)), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return folder_; }
  std::string secret() const override { return "a secret of the tests"; }
  void put(std::string_view key, std::string_view value, Deadline deadline) override;
  std::string get(std::string_view key, Deadline deadline) override;

 private:
  std::string path(std::string_view key) const;
  std::string folder_;
  int rank_;
  int size_;
};

// A bootstrap with something between it and its caller.
class Wrapped : public Bootstrap {
 public:
  explicit Wrapped(Bootstrap& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string name() const override { return inner_.name(); }
  std::string secret() const override { return inner_.secret(); }
  void put(std::string_view key, std::string_view value, Deadline deadline) override {
    inner_.put(key, value, deadline);
  }
  std::string get(std::string_view key, Deadline deadline) override {
    return inner_.get(key, deadline);
  }

 private:
  Bootstrap& inner_;
};

// Names of the engine tcp in these tests: if all frames have tags, and if ranks 0 and 1, 2 and 3 …
// are on one host each.
inline constexpr const char* kTcpTagged = "tcp_tagged";
inline constexpr const char* kTcpHosts = "tcp_hosts";
// The engine mpi has a name for each MPI (mpi_workers.h).
inline bool over_mpi(const std::string& name) {
  return name.starts_with("mpi_");
}
inline std::string engine_called(const std::string& name) {
  if (name == kTcpTagged || name == kTcpHosts) return "tcp";
  return over_mpi(name) ? "mpi" : name;
}
// Those of this build whose workers may be threads of one process, or forked from it: all but mpi.
std::vector<std::string> engines_in_one_process();

struct WorldSpec {
  std::string engine = "thread";  // or kTcpTagged, kTcpHosts, or one of mpi_engines()
  int size = 2;
  std::chrono::milliseconds timeout{20'000};
  std::vector<int> hosts =
      {};  // the number of each worker's host; empty: as the engine's name says
};

// How one worker ended.
struct Outcome {
  std::optional<ErrorKind> kind;  // nothing: it returned
  std::vector<int> ranks;
  std::string text;
  std::chrono::milliseconds took{0};
};

// Runs `body` on every worker, as a thread, or over MPI as a process of its own, and returns how each ended; what is not a lockstep::Error
// escapes.
std::vector<Outcome> run_workers(const WorldSpec& spec, const std::function<void(Comm&)>& body);

// The same before there is a Comm.
std::vector<Outcome> run_bootstraps(const WorldSpec& spec,
                                    const std::function<void(Bootstrap&)>& body);

// As run_workers, where every worker must return; rethrows the first failure.
void run_all(const WorldSpec& spec, const std::function<void(Comm&)>& body);

// Workers as processes, for what kills them.
class ProcessWorld {
 public:
  ProcessWorld(const WorldSpec& spec, std::function<void(Comm&)> body);
  // The same before there is a Comm.
  ProcessWorld(int size, const std::function<void(Bootstrap&)>& body);
  ~ProcessWorld();  // kills what is left

  pid_t process(int rank) const { return processes_[rank]; }
  void signal(int rank, int number) const;
  // Waits until every worker has put a mark (see mark()).
  void await_marks(const std::string& name, Deadline deadline);
  // How a worker ended; nothing when it is still there at the deadline. A killed one has kind
  // nothing and text "signal 9".
  std::optional<Outcome> wait(int rank, Deadline deadline);

  // Called by a worker's body: says that it has come so far.
  static void mark(int rank, const std::string& name);

 private:
  int size_;
  std::string folder_;
  std::vector<pid_t> processes_;
};

}  // namespace lockstep::testing

#include "tests/support/workers.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "comm/channel.h"
#include "comm/engines.h"
#include "tests/support/mpi_workers.h"
#include "tests/support/outcomes.h"

namespace lockstep::testing {
namespace {

// When the worker of this thread began, for Outcome::took.
thread_local Deadline::Clock::time_point begun;

std::string current_folder;  // of the world that this process is a worker of

bool await_file(const std::string& path, Deadline deadline) {
  while (!std::filesystem::exists(path)) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(
        std::chrono::milliseconds(1));  // polling a folder, nothing to wake us
  }
  return true;
}

CommOptions options_of(const WorldSpec& spec, int rank) {
  CommOptions options;
  options.timeout = spec.timeout;
  if (spec.engine == kTcpTagged) options.wire = Wire::kTagged;
  if (!spec.hosts.empty()) {
    options.host = fmt::to_string(spec.hosts[static_cast<std::size_t>(rank)]);
  } else if (spec.engine == kTcpHosts) {
    options.host = fmt::to_string(rank / 2);
  }
  return options;
}

// A wire with tags is tested as if it were an engine of its own.
Comm connect_as(const WorldSpec& spec, Bootstrap& bootstrap) {
  if (!over_mpi(spec.engine))
    return connect(engine_called(spec.engine), bootstrap, options_of(spec, bootstrap.rank()));
  // Processes take their time to start, which is not under test.
  auto link = comm::connect_link("mpi", bootstrap, {.timeout = std::chrono::seconds(60)});
  begun = Deadline::Clock::now();
  return Comm(comm::Channel::of_world(std::move(link), options_of(spec, bootstrap.rank())));
}

}  // namespace

std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void publish(const std::string& path, std::string_view value) {
  const std::string draft = fmt::format("{}.{}", path, ::getpid());
  std::ofstream(draft, std::ios::binary) << value;
  std::filesystem::rename(draft, path);
}

Outcome outcome_of(const std::function<void()>& body) {
  Outcome outcome;
  begun = Deadline::Clock::now();
  try {
    body();
  } catch (const Error& error) {
    outcome.kind = error.kind();
    outcome.ranks = error.ranks();
    outcome.text = error.what();
  }
  outcome.took =
      std::chrono::duration_cast<std::chrono::milliseconds>(Deadline::Clock::now() - begun);
  return outcome;
}

std::string to_text(const Outcome& outcome) {
  std::string text = fmt::format("{} {} {}", outcome.kind ? static_cast<int>(*outcome.kind) : 0,
                                 outcome.took.count(), outcome.ranks.size());
  for (const int rank : outcome.ranks) text += fmt::format(" {}", rank);
  return text + "\n" + outcome.text;
}

Outcome from_text(const std::string& text) {
  std::istringstream stream(text);
  int kind = 0;
  std::int64_t took = 0;
  std::size_t ranks = 0;
  stream >> kind >> took >> ranks;
  Outcome outcome;
  if (kind != 0) outcome.kind = static_cast<ErrorKind>(kind);
  outcome.took = std::chrono::milliseconds(took);
  outcome.ranks.resize(ranks);
  for (int& rank : outcome.ranks) stream >> rank;
  stream.ignore();
  std::getline(stream, outcome.text, '\0');
  return outcome;
}

void LocalStore::put(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  values_[key] = value;
  changed_.notify_all();
}

std::string LocalStore::get(const std::string& key, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline.when(), [&] { return values_.contains(key); })) {
    throw Timeout("nobody has put " + key);
  }
  return values_[key];
}

std::string FolderBootstrap::path(std::string_view key) const {
  std::string name(key);
  for (char& c : name) {
    if (c == '/') c = '_';
  }
  return folder_ + "/" + name;
}

void FolderBootstrap::put(std::string_view key, std::string_view value, Deadline) {
  publish(path(key), value);
}

std::string FolderBootstrap::get(std::string_view key, Deadline deadline) {
  if (!await_file(path(key), deadline)) throw Timeout("nobody has put " + std::string(key));
  return slurp(path(key));
}

std::vector<Outcome> run_bootstraps(const WorldSpec& spec,
                                    const std::function<void(Bootstrap&)>& body) {
  if (over_mpi(spec.engine)) return run_mpi_workers(spec, body);
  static std::atomic<int> worlds{0};
  const std::string name = fmt::format("world {}", worlds++);
  auto store = std::make_shared<LocalStore>();
  std::vector<Outcome> outcomes(spec.size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < spec.size; ++rank) {
    threads.emplace_back([&, rank] {
      outcomes[rank] = outcome_of([&] {
        LocalBootstrap bootstrap(store, name, rank, spec.size);
        body(bootstrap);
      });
    });
  }
  for (auto& thread : threads) thread.join();
  return outcomes;
}

std::vector<Outcome> run_workers(const WorldSpec& spec, const std::function<void(Comm&)>& body) {
  return run_bootstraps(spec, [&](Bootstrap& bootstrap) {
    Comm comm = connect_as(spec, bootstrap);
    body(comm);
  });
}

std::vector<std::string> engines_in_one_process() {
  std::vector<std::string> names;
  for (const EngineInfo& engine : engines()) {
    if (engine.built && engine.name != "mpi") names.push_back(engine.name);
  }
  return names;
}

void run_all(const WorldSpec& spec, const std::function<void(Comm&)>& body) {
  for (const Outcome& outcome : run_workers(spec, body)) {
    if (outcome.kind) raise(*outcome.kind, outcome.text, outcome.ranks);
  }
}

ProcessWorld::ProcessWorld(const WorldSpec& spec, std::function<void(Comm&)> body)
    : ProcessWorld(spec.size, [spec, body = std::move(body)](Bootstrap& bootstrap) {
        Comm comm = connect_as(spec, bootstrap);
        body(comm);
      }) {}

ProcessWorld::ProcessWorld(int size, const std::function<void(Bootstrap&)>& body) : size_(size) {
  char folder[] = "/tmp/lockstep-test-XXXXXX";
  folder_ = ::mkdtemp(folder);
  for (int rank = 0; rank < size; ++rank) {
    const pid_t process = ::fork();
    if (process == 0) {
      current_folder = folder_;
      const Outcome outcome = outcome_of([&] {
        FolderBootstrap bootstrap(folder_, rank, size);
        body(bootstrap);
      });
      publish(fmt::format("{}/outcome-{}", folder_, rank), to_text(outcome));
      ::_exit(0);
    }
    processes_.push_back(process);
  }
}

ProcessWorld::~ProcessWorld() {
  for (const pid_t process : processes_) {
    if (process <= 0) continue;
    ::kill(process, SIGKILL);
    ::waitpid(process, nullptr, 0);
  }
  std::filesystem::remove_all(folder_);
}

void ProcessWorld::signal(int rank, int number) const {
  if (processes_[rank] <= 0) throw BadInput(fmt::format("worker {} has ended already", rank));
  ::kill(processes_[rank], number);
}

void ProcessWorld::mark(int rank, const std::string& name) {
  publish(fmt::format("{}/mark-{}-{}", current_folder, name, rank), "");
}

void ProcessWorld::await_marks(const std::string& name, Deadline deadline) {
  for (int rank = 0; rank < size_; ++rank) {
    if (!await_file(fmt::format("{}/mark-{}-{}", folder_, name, rank), deadline)) {
      throw Timeout(fmt::format("worker {} has not reached {}", rank, name));
    }
  }
}

std::optional<Outcome> ProcessWorld::wait(int rank, Deadline deadline) {
  int status = 0;
  while (true) {
    const pid_t ended = ::waitpid(processes_[rank], &status, WNOHANG);
    if (ended == processes_[rank]) break;
    if (deadline.expired()) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // waitpid has no deadline
  }
  processes_[rank] = -1;
  Outcome outcome;
  if (WIFSIGNALED(status)) {
    outcome.text = fmt::format("signal {}", WTERMSIG(status));
    return outcome;
  }
  const std::string path = fmt::format("{}/outcome-{}", folder_, rank);
  if (!std::filesystem::exists(path)) {
    outcome.text = fmt::format("exit {} without an outcome", WEXITSTATUS(status));
    return outcome;
  }
  return from_text(slurp(path));
}

}  // namespace lockstep::testing

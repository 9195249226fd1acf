#include "comm/engines.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <utility>

#include "base/mutex.h"
#include "comm/arena/offer.h"
#include "comm/channel.h"
#include "comm/core/passing_link.h"
#include "comm/core/said_by_all.h"
#include "comm/mpi/mpi_engine.h"
#include "comm/nccl/nccl_engine.h"
#include "comm/shm/host_link.h"
#include "comm/shm/shm_engine.h"
#include "comm/tcp/tcp_engine.h"
#include "comm/thread/thread_engine.h"

namespace lockstep::comm {
namespace {

// The witness: calls `on_failure` when the link below ends.
class WitnessedLink : public PassingLink {
 public:
  WitnessedLink(std::shared_ptr<Link> link, OnFailure on_failure)
      : PassingLink(std::move(link)), on_failure_(std::move(on_failure)) {}

  // Every failure leaves through here. In a child of fork() the link belongs to the parent: the
  // call below does nothing there, so there is no failure to tell.
  void fail(const Failure& failure) noexcept override {
    below().fail(failure);
    if (const auto reason = below().failure(); reason && !told_.exchange(true))
      on_failure_(*reason);
  }

 private:
  OnFailure on_failure_;
  std::atomic<bool> told_{false};
};

std::shared_ptr<Link> witnessed(std::shared_ptr<Link> link, const OnFailure& on_failure) {
  if (!on_failure) return link;
  return std::make_shared<WitnessedLink>(std::move(link), on_failure);
}

// Threads of one process meet here by the name of their bootstrap. The first one makes the links of
// all; each takes its own.
std::shared_ptr<Link> connect_thread(Bootstrap& bootstrap, const CommOptions& options) {
  const auto deadline = Deadline::after(options.timeout);
  const std::string here = std::to_string(::getpid());
  if (bootstrap.rank() == 0) bootstrap.put("thread/process", here, deadline);
  if (bootstrap.get("thread/process", deadline) != here) {
    throw Unavailable(
        "the thread engine connects threads of one process; use tcp between processes");
  }
  static base::Mutex mutex;
  static std::map<std::string, std::map<int, std::shared_ptr<Link>>> worlds LOCKSTEP_GUARDED_BY(
      mutex);
  const base::Lock lock(mutex);
  auto& world = worlds[bootstrap.name()];
  if (world.empty()) {
    const auto links = make_thread_links(bootstrap.size());
    for (const auto& link : links) world[link->rank()] = link;
  }
  const auto node = world.extract(bootstrap.rank());
  if (world.empty()) worlds.erase(bootstrap.name());
  if (node.empty()) {
    throw BadInput(fmt::format("a second worker joins as rank {}", bootstrap.rank()));
  }
  return node.mapped();
}

void check_nothing(const CommOptions&) {}

// Over a network, and through shared memory where workers are on one host of several. What is wrong
// with the options is said before anybody is waited for.
template <void (*kCheck)(const CommOptions&),
          std::shared_ptr<Link> (*kConnect)(Bootstrap&, const CommOptions&)>
std::shared_ptr<Link> connect_hosts(Bootstrap& bootstrap, const CommOptions& options) {
  kCheck(options);
  const auto deadline = Deadline::after(options.timeout);
  HostForming hosts(bootstrap, options.host, deadline);
  CommOptions rest = options;
  rest.timeout = std::max(std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left()),
                          std::chrono::milliseconds(1));
  return hosts.finish(kConnect(bootstrap, rest));
}

bool all_on_one_host(Bootstrap& bootstrap, const CommOptions& options) {
  const auto deadline = Deadline::after(options.timeout);
  const std::string here = host_name(options.host);
  const auto hosts = said_by_all(bootstrap, "nccl/host", here, deadline);
  return std::count(hosts.begin(), hosts.end(), here) == bootstrap.size();
}

// Beside NCCL there is a link between the processes, and every failure shows there. So the witness
// wraps that link, below the link with devices.
std::shared_ptr<Link> connect_nccl(Bootstrap& bootstrap, const CommOptions& options,
                                   const OnFailure& on_failure) {
  auto api = load_nccl();
  const bool one_host = all_on_one_host(bootstrap, options);
  auto host = one_host ? connect_shm(bootstrap, options) : connect_tcp(bootstrap, options);
  return make_nccl_link(witnessed(std::move(host), on_failure), std::move(api));
}

// A program's Bootstrap may throw what it likes. That is no bug of ours, and must not be called one.
class ToldApart : public Bootstrap {
 public:
  explicit ToldApart(Bootstrap& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string name() const override { return inner_.name(); }
  std::string secret() const override { return inner_.secret(); }
  void put(std::string_view key, std::string_view value, Deadline deadline) override {
    told_apart([&] { inner_.put(key, value, deadline); });
  }
  std::string get(std::string_view key, Deadline deadline) override {
    return told_apart([&] { return inner_.get(key, deadline); });
  }

 private:
  template <typename Call>
  static auto told_apart(Call call) -> decltype(call()) {
    try {
      return call();
    } catch (const Error&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      throw Unavailable(fmt::format("the Bootstrap failed: {}", error.what()));
    }
  }

  Bootstrap& inner_;
};

struct Engine {
  const char* name;
  const char* about;
  const char* missing;
  bool (*built)();
  std::shared_ptr<Link> (*connect)(Bootstrap&, const CommOptions&, const OnFailure&);
};

template <std::shared_ptr<Link> (*kConnect)(Bootstrap&, const CommOptions&)>
std::shared_ptr<Link> connect_host(Bootstrap& bootstrap, const CommOptions& options,
                                   const OnFailure& on_failure) {
  return witnessed(kConnect(bootstrap, options), on_failure);
}

constexpr Engine kEngines[] = {
    {"thread", "threads of one process, for tests", "", [] { return true; },
     connect_host<connect_thread>},
    {"shm", "CPU workers of one host, through shared memory", "", [] { return true; },
     connect_host<connect_shm>},
    {"tcp", "CPU workers of one or several hosts, over TCP", "", [] { return true; },
     connect_host<connect_hosts<check_tcp, connect_tcp>>},
    {"mpi",
     "workers of mpirun or srun, over OpenMPI or MPICH; the network is trusted, and a lost worker "
     "may end the whole job",
     "install OpenMPI (libopenmpi-dev) or MPICH (libmpich-dev) and build again", mpi_built,
     connect_host<connect_hosts<check_nothing, connect_mpi>>},
    {"nccl", "workers with GPUs, of one or several hosts, over NCCL",
     "install the CUDA toolkit (nvcc) and NCCL (libnccl-dev) and build again", nccl_built,
     connect_nccl},
};

const Engine& find_engine(const std::string& name) {
  std::string names;
  for (const Engine& known : kEngines) {
    if (name == known.name) return known;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", known.name);
  }
  throw BadInput(fmt::format("there is no engine '{}'; engines are {}", name, names));
}

}  // namespace

std::shared_ptr<Link> connect_link(const std::string& engine, Bootstrap& programs_own,
                                   const CommOptions& options, const OnFailure& on_failure) {
  ToldApart bootstrap(programs_own);
  return find_engine(engine).connect(bootstrap, options, on_failure);
}

void check_engine(const std::string& engine) {
  find_engine(engine);
}

Comm connect(const std::string& engine, Bootstrap& bootstrap, const CommOptions& options,
             const OnFailure& on_failure) {
  return Comm(Channel::of_world(connect_link(engine, bootstrap, options, on_failure), options));
}

}  // namespace lockstep::comm

namespace lockstep {

std::vector<EngineInfo> engines() {
  std::vector<EngineInfo> infos;
  for (const auto& engine : comm::kEngines) {
    const bool built = engine.built();
    infos.push_back({engine.name, built, built ? engine.about : engine.missing});
  }
  return infos;
}

Comm connect(const std::string& engine, Bootstrap& bootstrap, const CommOptions& options) {
  return comm::connect(engine, bootstrap, options, {});
}

Comm comm::connect_late(int workers) {
  comm::Group group;
  group.link = comm::make_thread_links(1)[0];
  group.members.resize(static_cast<std::size_t>(workers));
  std::iota(group.members.begin(), group.members.end(), 0);
  group.timeout = CommOptions().timeout;
  group.late = true;
  return Comm(std::make_shared<comm::Channel>(std::move(group)));
}

comm::ArenaBook& comm::Inside::book_of(const Comm& comm) {
  return *comm.channel_->group().book;
}

void comm::Inside::require_all(const Comm& comm) {
  comm.channel_->require_alive();
  const Group& group = comm.channel_->group();
  if (group.meets_nobody()) return;
  for (const int member : group.members) {
    if (member == group.link->rank()) continue;
    if (const auto end = group.link->end_of(member)) {
      group.link->fail(*end);
      raise(*end);
    }
  }
}

void comm::Inside::fail(const Comm& comm, const Error& error) {
  comm.channel_->group().link->fail(failure_from(error));
}

std::shared_ptr<SharedArena> comm::Inside::share_again(Comm& comm, const Arena& own) {
  comm.channel_->require_alive();
  return share(comm, comm.channel_->group(), comm.channel_->next_arena(),
               {own.size(), Comm::Mappings::kShared, &own});
}

void comm::Inside::enter(const Comm& comm, std::uint8_t kind, std::shared_ptr<SharedArena> arena) {
  book_of(comm).add({comm.channel_->group().id, kind, std::move(arena)});
}

Comm connect_alone(const CommOptions& options) {
  return Comm(comm::Channel::of_world(comm::make_thread_links(1)[0], options));
}

}  // namespace lockstep

// A world: how a worker joins it, and its handle. The steps of join(), and of regroup(), which begins with `meet`:
//
//   info        rank and size, from the launcher's variables
//   device      a GPU, if one was asked for. A world of one worker is complete here
//   host        rank 0 opens the rendezvous, unless the launcher has done so
//   meet        every worker joins there: one handshake, and one answer when all have come
//   connect     the engine exchanges addresses through the rendezvous
//   done        one more answer when all have connected. After it nobody needs the rendezvous, and
//               nothing of it is left while the job trains
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <lockstep/world.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/diagnosis.h"
#include "base/environment.h"
#include "base/log.h"
#include "comm/engines.h"
#include "control/arithmetic_name.h"
#include "control/device_choice.h"
#include "control/doing.h"
#include "control/faults.h"
#include "control/launcher_environment.h"
#include "control/rendezvous/client.h"
#include "control/rendezvous/loss.h"
#include "control/rendezvous/secret.h"
#include "control/rendezvous/server.h"
#include "control/uncaught.h"
#include "control/world_state.h"

namespace lockstep {
namespace {

using control::Address;
using control::LaunchInfo;
using std::chrono::milliseconds;

constexpr milliseconds kDefaultTimeout{300'000};
constexpr milliseconds kLeastForFarewell{100};
constexpr milliseconds kMostForFarewell{2'000};

milliseconds timeout_of(const JoinOptions& options) {
  if (options.timeout.count() > 0) return options.timeout;
  if (options.timeout.count() < 0) throw BadInput("JoinOptions::timeout is negative");
  const auto said = base::environment("LOCKSTEP_TIMEOUT");
  return said ? control::parse_seconds(*said, "LOCKSTEP_TIMEOUT") : kDefaultTimeout;
}

// Shared memory on one host, TCP between hosts, and where workers of other hosts may join later.
std::string default_engine(const LaunchInfo& info, DeviceKind device) {
  if (auto engine = control::engine_for(device); !engine.empty()) return engine;
  const bool may_grow = info.elastic && info.rendezvous.kind == Address::Kind::kTcp;
  return info.local_size == info.size && !may_grow ? "shm" : "tcp";
}

// Empty if nobody has asked for an engine.
std::string engine_asked(const JoinOptions& options) {
  if (!options.engine.empty()) return options.engine;
  return base::environment("LOCKSTEP_ENGINE").value_or("");
}

std::string secret_of(const LaunchInfo& info) {
  if (info.secret_fd) return control::read_sealed_secret(*info.secret_fd);
  if (info.secret_file) return control::read_secret_file(*info.secret_file);
  return {};  // on one host the kernel tells which user connects
}

control::Listener listener_of(const LaunchInfo& info) {
  const Address& where = info.rendezvous;
  if (where.kind == Address::Kind::kUnix) return control::listen_unix(where.host);
  const bool named = !info.interface_name.empty();
  auto listener = control::listen_tcp(named ? info.interface_name : where.host, where.port);
  const std::string& host = listener.address.host;
  if (info.local_size < info.size && (host.starts_with("127.") || host == "::1")) {
    base::log(base::LogLevel::kWarn,
              "{}, which other hosts cannot reach; set LOCKSTEP_INTERFACE to the interface between "
              "the hosts",
              where.host == host ? "workers are to meet at " + host
                                 : where.host + " stands for " + host + " here");
  }
  return listener;
}

// The rendezvous, if this worker hosts it; else only its address.
class Host {
 public:
  Host(const LaunchInfo& info, const std::string& secret, Deadline deadline)
      : address_(info.rendezvous), deadline_(deadline) {
    if (!info.rank_0_hosts || info.rank != 0) return;
    hosted_.emplace(listener_of(info), control::ServerOptions{info.size, secret});
    address_ = hosted_->address();
  }
  // Also if joining has failed: the other workers, even late ones, must still hear why.
  ~Host() {
    if (!hosted_) return;
    const auto left = std::chrono::duration_cast<milliseconds>(deadline_.left());
    hosted_->finish(Deadline::after(std::clamp(left, kLeastForFarewell, kMostForFarewell)));
  }

  const Address& address() const { return address_; }

 private:
  Address address_;
  Deadline deadline_;
  std::optional<control::HostedRendezvous> hosted_;
};

// Tells the others if this worker cannot connect: they would wait for it until the deadline.
Comm connect_all(const std::string& engine, control::RendezvousClient& client,
                 const CommOptions& options, const comm::OnFailure& on_failure) {
  try {
    return comm::connect(engine, client, options, on_failure);
  } catch (const std::exception& error) {
    client.give_up(base::diagnosis(error));
    throw;
  }
}

Wire wire_asked() {
  const std::string said = base::environment("LOCKSTEP_WIRE").value_or("auto");
  if (said == "auto") return Wire::kAuto;
  if (said == "plain") return Wire::kPlain;
  if (said == "tagged") return Wire::kTagged;
  throw BadInput(fmt::format("LOCKSTEP_WIRE is '{}'; it must be auto, plain or tagged", said));
}

struct Joined {
  std::uint64_t generation;
  std::vector<int> places;  // as RendezvousClient
  int rank;
  int survivors;
  bool restarted;
  Comm comm;
};

// Tells the launcher which worker this one has lost, both as the launcher numbers them.
comm::OnFailure teller(const std::shared_ptr<control::LossTeller>& launcher, int place,
                       std::vector<int> places) {
  return [launcher, place, places = std::move(places)](const comm::Failure& failure) {
    std::vector<int> lost;
    for (const int rank : failure.ranks) {
      const auto at = static_cast<std::size_t>(rank);
      lost.push_back(rank >= 0 && at < places.size() ? places[at] : rank);
    }
    if (const auto loss = control::loss_of(place, failure.kind, lost)) launcher->tell(*loss);
  };
}

// What workers must agree on. Those that may be replaced by others also say how they compute.
std::string build_of(const LaunchInfo& info) {
  if (!info.elastic || control::arithmetic_name == nullptr) return LOCKSTEP_VERSION;
  return fmt::format("{} with {}", LOCKSTEP_VERSION, control::arithmetic_name());
}

Joined join_others(const control::Rejoining& how, Deadline deadline, bool in_batch) {
  const LaunchInfo& info = how.launched;
  const Wire wire = wire_asked();
  const Host host(info, how.secret, deadline);
  const control::JoinRequest request{info.rank,  info.size,   build_of(info),
                                     how.engine, how.timeout, in_batch};
  control::RendezvousClient client(host.address(), how.secret, request, deadline);
  const std::string& named = info.interface_name;
  const CommOptions options{how.timeout, named.empty() ? client.local_host() : named, wire,
                            base::environment("LOCKSTEP_HOST").value_or("")};
  const comm::OnFailure on_failure = teller(how.launcher, info.rank, client.places());
  // A worker that is left alone needs no engine.
  Comm comm =
      client.size() == 1 ? connect_alone() : connect_all(how.engine, client, options, on_failure);
  Joined joined{client.generation(), client.places(),    client.rank(),
                client.survivors(),  client.restarted(), std::move(comm)};
  client.done(deadline);
  return joined;
}

// As join_others(). If it fails, the launcher hears which worker this one has lost.
Joined join_or_tell(const control::Rejoining& how) {
  const LaunchInfo& info = how.launched;
  try {
    how.launcher->tell({info.rank, control::Loss::kNobody});  // a loss of an earlier world is over
    return join_others(how, Deadline::after(how.timeout), false);
  } catch (const Error& error) {
    teller(how.launcher, info.rank, {})(comm::failure_from(error));
    throw;
  }
}

// In an elastic job ranks are given out, and the job may go on with fewer workers.
void take_ranks(const Joined& joined, const LaunchInfo& launched, LaunchInfo& info) {
  info.rank = joined.rank;
  info.size = static_cast<int>(joined.places.size());
  if (!info.elastic || launched.local_size < launched.size) return;
  info.local_rank = info.rank;
  info.local_size = info.size;
}

// A world of one worker. It uses nccl only if that was asked for by name, because nothing travels.
Comm connect_one(const std::string& engine, milliseconds timeout) {
  if (!engine.empty()) comm::check_engine(engine);
  if (engine != control::engine_for(DeviceKind::kCuda)) return connect_alone();
  control::OwnBootstrap bootstrap;
  return connect(engine, bootstrap, {.timeout = timeout});
}

// A worker that has come to the end of its program leaves its world; one that is thrown out of it says nothing.
std::shared_ptr<void> farewell(const std::shared_ptr<control::LossTeller>& launcher, int place) {
  return {nullptr, [launcher, place](void*) {
            if (std::uncaught_exceptions() == 0) launcher->tell({place, control::Loss::kGoodbye});
          }};
}

}  // namespace

World control::Joining::join(const JoinOptions& options, cuda::Gpus& gpus) {
  LaunchInfo info = find_launch_info();
  const milliseconds timeout = timeout_of(options);
  const std::string asked = engine_asked(options);
  const DeviceKind kind = device_asked(options.device, asked, base::environment);
  const Device device = control::take_device(kind, info, gpus, base::environment);
  const std::string launcher = name(info.launcher);
  if (info.size == 1 && !info.elastic) {
    World::State state{std::move(info), 1, launcher, device, connect_one(asked, timeout)};
    return World(std::make_shared<World::State>(std::move(state)));
  }
  base::set_log_name(fmt::format("rank {}", info.rank));
  auto how = std::make_shared<control::Rejoining>(
      control::Rejoining{info, asked.empty() ? default_engine(info, kind) : asked, secret_of(info),
                         timeout, std::make_shared<control::LossTeller>(info.loss_fd)});
  Joined joined = join_or_tell(*how);
  take_ranks(joined, how->launched, info);
  World::State state{std::move(info), joined.generation, launcher, device, std::move(joined.comm)};
  state.joined_later = joined.survivors > 0;
  state.restarted = joined.restarted;
  if (state.joined_later || state.restarted)
    Faults::here().came_later(state.generation, state.restarted);
  if (how->launched.elastic && how->engine != "mpi") {  // MPI has no place for other workers
    how->news = control::NewsPage::inherited(how->launched.news_fd);
    how->estate = control::Estate(how->launched.estate_fd);
    how->farewell = farewell(how->launcher, how->launched.rank);
    control::end_with_code_if_uncaught();
    state.rejoining = std::move(how);
  }
  return World(std::make_shared<World::State>(std::move(state)));
}

World join(const JoinOptions& options) {
  return control::Joining::join(options, cuda::gpus());
}

World::World(std::shared_ptr<State> state) : state_(std::move(state)) {}
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;
World::~World() = default;

int World::rank() const {
  return state_->info.rank;
}
int World::size() const {
  return state_->info.size;
}
int World::local_rank() const {
  return state_->info.local_rank;
}
int World::local_size() const {
  return state_->info.local_size;
}
std::uint64_t World::generation() const {
  return state_->generation;
}
const std::string& World::launcher() const {
  return state_->launcher;
}
Device World::device() const {
  return state_->device;
}
Comm& World::comm() {
  return state_->comm;
}
Comm World::open_channel() {
  return state_->comm.channel(state_->next_channel++);
}

World control::handle_on(const World& world) {
  return Joining::handle_on(world);
}

void control::Joining::say(const World& world, Doing doing) {
  if (!world.elastic()) return;
  Rejoining& how = *world.state_->rejoining;
  how.news.say(how.launched.rank, doing);
}
void control::say(const World& world, Doing doing) {
  Joining::say(world, doing);
}

void control::Joining::begin_loop(const World& world) {
  if (!world.elastic()) return;
  Rejoining& how = *world.state_->rejoining;
  if (++how.loops == 2) how.launcher->tell({how.launched.rank, Loss::kClosed});
}

int control::Joining::loops_in(const World& world) {
  return world.elastic() ? world.state_->rejoining->loops : 0;
}
void control::begin_loop(const World& world) {
  Joining::begin_loop(world);
}
int control::loops_in(const World& world) {
  return Joining::loops_in(world);
}

const control::Estate* control::Joining::estate_of(const World& world) {
  if (!world.elastic() || world.state_->late) return nullptr;
  const Estate& estate = world.state_->rejoining->estate;
  return estate.is_there() ? &estate : nullptr;
}

World control::Joining::late_world(const World& now, int workers) {
  const World::State& here = *now.state_;
  LaunchInfo info = here.info;
  info.rank = info.local_rank = 0;
  info.size = info.local_size = workers;
  World::State state{std::move(info), here.generation, here.launcher, here.device,
                     comm::connect_late(workers)};
  state.rejoining = here.rejoining;
  state.late = true;
  return World(std::make_shared<World::State>(std::move(state)));
}

bool World::elastic() const {
  return state_->rejoining != nullptr;
}
int World::newcomers() const {
  return elastic() && !state_->rejoining->closed() ? state_->rejoining->news.newcomers() : 0;
}
void World::allow_workers(int most) {
  if (elastic()) state_->rejoining->news.set_most_workers(most);
}
bool World::joined_later() const {
  return state_->joined_later;
}
bool World::restarted() const {
  return state_->restarted;
}
int World::survivors() const {
  return elastic() ? state_->rejoining->survivors : 0;
}

// A generation may fail while it forms, because another worker is lost: then there is a next one.
void World::regroup(bool in_batch) {
  if (!elastic())
    throw BadInput("the workers of this world do not change: start them with --max-restarts");
  control::Rejoining& how = *state_->rejoining;
  const Deadline deadline = Deadline::after(how.timeout);
  while (true) {
    try {
      how.launcher->tell({how.launched.rank, control::Loss::kNobody});
      Joined joined = join_others(how, deadline, in_batch || how.closed());
      take_ranks(joined, how.launched, state_->info);
      state_->generation = joined.generation;
      how.survivors = joined.survivors;
      state_->announcements.reset();
      state_->inventory.reset();
      state_->next_channel = State::kFirstChannel;
      state_->comm = std::move(joined.comm);
      base::set_log_name(fmt::format("rank {}", rank()));
      return;
    } catch (const PeerLost&) {
      if (deadline.expired()) throw;
    }
  }
}

const std::shared_ptr<control::Announcements>& World::announcements() {
  auto& made = state_->announcements;
  if (!made)
    made = std::make_shared<control::Announcements>(state_->comm.channel(State::kAnnouncements));
  return made;
}

const std::shared_ptr<control::Inventory>& World::inventory() {
  auto& made = state_->inventory;
  if (!made) made = std::make_shared<control::Inventory>(state_->comm.channel(State::kInventory));
  return made;
}

World World::over(Comm comm, Device device) {
  control::LaunchInfo info;
  info.rank = info.local_rank = comm.rank();
  info.size = info.local_size = comm.size();
  return World(std::make_shared<State>(State{info, 1, "program", device, std::move(comm)}));
}

}  // namespace lockstep

// Joining a world: find our place, meet the others, connect, and see each other off.
//
//   place       from the launcher's variables
//   device      a GPU, if they are asked for; a world of one goes no further
//   host        rank 0 opens the rendezvous, unless the launcher has
//   meet        every worker joins there: one handshake, one answer when all have come
//   connect     the engine exchanges addresses through it
//   done        one more answer when all have connected; from then on nobody needs the rendezvous,
//               so that nothing of it remains while the job trains
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <lockstep/world.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "base/diagnosis.h"
#include "base/environment.h"
#include "base/log.h"
#include "comm/engines.h"
#include "control/device_choice.h"
#include "control/joining.h"
#include "control/launcher_environment.h"
#include "control/own_bootstrap.h"
#include "control/rendezvous/client.h"
#include "control/rendezvous/hosted.h"
#include "control/rendezvous/loss.h"
#include "control/rendezvous/secret.h"
#include "control/world_state.h"

namespace lockstep {
namespace {

using control::Address;
using control::Place;
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

// Shared memory on one host; between hosts what was built for it.
std::string default_engine(const Place& place, DeviceKind device) {
  if (auto engine = control::engine_for(device); !engine.empty()) return engine;
  if (place.local_size == place.size) return "shm";
  std::string hint;
  for (const EngineInfo& engine : engines()) {
    if (engine.name == "thread" || engine.name == "shm" || engine.name == "nccl") continue;
    if (engine.built) return engine.name;
    hint += fmt::format("; {}: {}", engine.name, engine.about);
  }
  throw Unavailable(fmt::format("this build has no engine that connects hosts{}", hint));
}

// Empty: nobody has asked for one.
std::string engine_asked(const JoinOptions& options) {
  if (!options.engine.empty()) return options.engine;
  return base::environment("LOCKSTEP_ENGINE").value_or("");
}

std::string secret_of(const Place& place) {
  if (place.secret_fd) return control::read_sealed_secret(*place.secret_fd);
  if (place.secret_file) return control::read_secret_file(*place.secret_file);
  return {};  // one host: the kernel vouches for the user
}

control::Listener listener_of(const Place& place) {
  const Address& where = place.rendezvous;
  if (where.kind == Address::Kind::kUnix) return control::listen_unix(where.host);
  const bool named = !place.interface_name.empty();
  auto listener = control::listen_tcp(named ? place.interface_name : where.host, where.port);
  const std::string& host = listener.address.host;
  if (place.local_size < place.size && (host.starts_with("127.") || host == "::1")) {
    base::log(
        base::LogLevel::kWarn,
        "{} stands for {} here, which other hosts cannot reach; set LOCKSTEP_INTERFACE to the "
        "interface between the hosts",
        where.host, host);
  }
  return listener;
}

// The rendezvous that rank 0 hosts; elsewhere nothing.
class Host {
 public:
  Host(const Place& place, const std::string& secret, Deadline deadline)
      : address_(place.rendezvous), deadline_(deadline) {
    if (!place.rank_0_hosts || place.rank != 0) return;
    hosted_.emplace(listener_of(place), control::ServerOptions{place.size, secret});
    address_ = hosted_->address();
  }
  // Also when joining failed: the others, and those who come late, are still to hear why.
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

Comm connect_all(const std::string& engine, control::RendezvousClient& client,
                 const CommOptions& options, comm::OnFailure on_failure) {
  try {
    return comm::connect(engine, client, options, std::move(on_failure));
  } catch (const std::exception& error) {
    client.give_up(base::diagnosis(error));
    throw;
  }
}

struct Joined {
  std::uint64_t generation;
  Comm comm;
};

Joined join_others(const Place& place, const std::string& engine, milliseconds timeout,
                   const comm::OnFailure& on_failure) {
  const Deadline deadline = Deadline::after(timeout);
  const std::string secret = secret_of(place);
  const Host host(place, secret, deadline);
  const control::JoinRequest request{place.rank, place.size, LOCKSTEP_VERSION, engine, timeout};
  control::RendezvousClient client(host.address(), secret, request, deadline);
  const std::string& named = place.interface_name;
  const CommOptions options{timeout, named.empty() ? client.local_host() : named};
  Joined joined{client.generation(), connect_all(engine, client, options, on_failure)};
  client.done(deadline);
  return joined;
}

// Tells the launcher whom this worker lost, if there is one that wants to know.
Joined join_or_tell(const Place& place, const std::string& engine, milliseconds timeout) {
  const auto launcher = std::make_shared<control::LossTeller>(place.loss_fd);
  const comm::OnFailure on_failure = [launcher, rank = place.rank](const comm::Failure& failure) {
    if (const auto loss = control::loss_of(rank, failure.kind, failure.ranks))
      launcher->tell(*loss);
  };
  try {
    launcher->tell({place.rank, control::Loss::kNobody});  // what it lost before is past
    return join_others(place, engine, timeout, on_failure);
  } catch (const Error& error) {
    on_failure(comm::failure_from(error));
    throw;
  }
}

// Over nccl only for who has asked for it by name: nothing travels.
Comm connect_one(const std::string& engine, milliseconds timeout) {
  if (engine != "nccl") return connect_alone();
  control::OwnBootstrap bootstrap;
  return connect(engine, bootstrap, {.timeout = timeout});
}

}  // namespace

World control::Joining::join(const JoinOptions& options, cuda::Gpus& gpus) {
  Place place = find_place(base::environment, ::geteuid());
  const milliseconds timeout = timeout_of(options);
  const std::string asked = engine_asked(options);
  const DeviceKind kind = device_asked(options.device, asked, base::environment);
  const Device device = control::take_device(kind, place, gpus, base::environment);
  const std::string launcher = name(place.launcher);
  if (place.size == 1) {
    World::State state{std::move(place), 1, launcher, device, connect_one(asked, timeout)};
    return World(std::make_unique<World::State>(std::move(state)));
  }
  base::set_log_name(fmt::format("rank {}", place.rank));
  Joined joined = join_or_tell(place, asked.empty() ? default_engine(place, kind) : asked, timeout);
  World::State state{std::move(place), joined.generation, launcher, device, std::move(joined.comm)};
  return World(std::make_unique<World::State>(std::move(state)));
}

World join(const JoinOptions& options) {
  return control::Joining::join(options, cuda::gpus());
}

}  // namespace lockstep

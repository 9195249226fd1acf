#include "control/rendezvous/client.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "control/rendezvous/sockets.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{1};
constexpr milliseconds kMostPauseHere{10};    // between two attempts at a socket of this host
constexpr milliseconds kMostPauseThere{250};  // or of another
constexpr milliseconds kMostForFarewell{200};
constexpr milliseconds kMostMargin{500};
constexpr milliseconds kMostPatience =
    std::chrono::hours(24 * 40);  // what 32 bits of milliseconds hold

// How long the rendezvous may take to answer: a little less than we wait ourselves. Its answer names
// the missing workers, so it must arrive before our own deadline.
std::uint32_t patience_ms(Deadline deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline.left());
  const auto margin = std::clamp(left / 4, milliseconds(1), kMostMargin);
  return static_cast<std::uint32_t>(
      std::clamp(left - margin, milliseconds(0), kMostPatience).count());
}

std::string host_name() {
  char name[256] = "?";
  ::gethostname(name, sizeof name - 1);
  return name;
}

Join to_message(const JoinRequest& request, Deadline deadline) {
  Join join;
  join.rank = static_cast<std::uint32_t>(request.rank);
  join.size = static_cast<std::uint32_t>(request.size);
  join.wait_ms = patience_ms(deadline);
  join.timeout_ms = static_cast<std::uint32_t>(std::min(request.timeout, kMostPatience).count());
  join.build = request.build;
  join.engine = request.engine;
  join.host = host_name();
  join.pid = static_cast<std::uint32_t>(::getpid());
  join.in_batch = request.in_batch;
  return join;
}

// GiveUp and Closing belong to no request; 0 is no request's id.
std::uint32_t id_of(const Message& message) {
  return std::visit(
      [](const auto& one) -> std::uint32_t {
        if constexpr (requires { one.id; }) return one.id;
        return 0;
      },
      message);
}

// Throws for endings that another attempt cannot mend.
void raise_if_final(Ending ending, const Address& address, std::uint16_t their_version) {
  const std::string where = to_string(address);
  switch (ending) {
    case Ending::kOtherVersion:
      throw Mismatch(
          fmt::format("the rendezvous {} speaks version {} of the protocol, this worker {}; "
                      "build every worker from one version",
                      where, their_version, kProtocolVersion));
    case Ending::kRefusedSecret:
      throw BadInput(
          fmt::format("the rendezvous {} has another secret than this worker; give every "
                      "worker the same LOCKSTEP_SECRET_FILE",
                      where));
    case Ending::kNoSecret:
      throw BadInput(
          fmt::format("the process that answers at {} does not know the job's secret; see what "
                      "listens there, and choose another address",
                      where));
    case Ending::kNone:
    case Ending::kNotOurs:
    case Ending::kBrokenFrame:
      return;
  }
}

void check_key(std::string_view key) {
  if (key.empty() || key.size() > kMostKeyBytes) {
    throw BadInput(fmt::format("a key has 1 to {} bytes, not {}", kMostKeyBytes, key.size()));
  }
}

Session new_session(const std::string& secret) {
  return Session(Handshake(Role::kWorker, secret));
}

}  // namespace

RendezvousClient::RendezvousClient(const Address& address, const std::string& secret,
                                   const JoinRequest& request, Deadline deadline)
    : address_(address), rank_(request.rank), size_(request.size), session_(new_session(secret)) {
  const bool here = address.kind == Address::Kind::kUnix;
  milliseconds pause = kFirstPause;
  while (true) {
    std::string problem = "it did not answer";
    fd_ = try_connect(address, deadline, problem);
    if (fd_ && enter(request, secret, deadline, problem)) return;
    if (deadline.expired()) {
      throw Timeout(fmt::format(
          "rank {} could not join at {} within {:g} s: {}; see whether rank 0 "
          "or the launcher runs, and whether the address is right",
          rank_, to_string(address), static_cast<double>(request.timeout.count()) / 1000, problem));
    }
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause, deadline.left()));
    pause = std::min(pause * 2, here ? kMostPauseHere : kMostPauseThere);
  }
}

// False, with the problem, if another attempt may succeed.
bool RendezvousClient::enter(const JoinRequest& request, const std::string& secret,
                             Deadline deadline, std::string& problem) {
  session_ = new_session(secret);
  Join join = to_message(request, deadline);
  join.id = ++last_id_;
  session_.send(join);
  while (true) {
    while (const auto message = session_.next()) {
      if (const auto* failed = std::get_if<Failed>(&*message)) {
        raise(failed->kind, failed->message, failed->ranks);
      }
      if (const auto* welcomed = std::get_if<Welcome>(&*message)) {
        generation_ = welcomed->generation;
        rank_ = static_cast<int>(welcomed->rank);
        size_ = static_cast<int>(welcomed->places.size());
        places_ = welcomed->places;
        survivors_ = static_cast<int>(welcomed->survivors);
        restarted_ = welcomed->restarted;
        name_ = welcomed->name;
        generation_secret_ = generation_secret(secret, welcomed->name, welcomed->salt);
        return true;
      }
      problem = "the rendezvous there was just closing";
      if (std::holds_alternative<Closing>(*message)) return false;
    }
    raise_if_final(session_.ending(), address_, session_.peer_version());
    if (session_.ending() != Ending::kNone) {
      problem = fmt::format("the process that answers {}", describe(session_.ending()));
      return false;
    }
    const Arrival arrival = exchange(deadline);
    if (arrival == Arrival::kLate) return false;
    if (arrival == Arrival::kSome) continue;
    // After the rendezvous's proof its end means that it has died. Before the proof it may have made
    // room for others, or it was the rendezvous of another job.
    if (session_.open()) lost();
    problem = "it closed the connection";
    return false;
  }
}

void RendezvousClient::put(std::string_view key, std::string_view value, Deadline deadline) {
  check_key(key);
  if (value.size() > kMostValueBytes) {
    throw BadInput(fmt::format("the value of \"{}\" has {} bytes; the most is {}", key,
                               value.size(), kMostValueBytes));
  }
  const std::uint32_t id = ++last_id_;
  ask(Put{id, std::string(key), std::string(value)}, id, deadline);
}

std::string RendezvousClient::get(std::string_view key, Deadline deadline) {
  check_key(key);
  const std::uint32_t id = ++last_id_;
  Message answer = ask(Get{id, patience_ms(deadline), std::string(key)}, id, deadline);
  auto* value = std::get_if<Value>(&answer);
  if (value == nullptr) lost();
  return std::move(value->value);
}

std::string RendezvousClient::local_host() const {
  if (address_.kind == Address::Kind::kUnix) return {};
  return numeric_host(local_address(fd_.get()));
}

void RendezvousClient::done(Deadline deadline) {
  const std::uint32_t id = ++last_id_;
  ask(Done{id, patience_ms(deadline)}, id, deadline);
  fd_.reset();
}

void RendezvousClient::give_up(const std::string& why) noexcept {
  try {
    if (!fd_) return;
    session_.send(GiveUp{why});
    flush(Deadline::after(kMostForFarewell));
  } catch (const std::exception&) {
    // The others then see the end of the connection, which says the same without a reason.
  }
  fd_.reset();
}

// Waits for the answer to `id`. Late answers to earlier requests, which ended with Timeout, are dropped.
Message RendezvousClient::ask(const Message& request, std::uint32_t id, Deadline deadline) {
  if (!fd_) lost();
  session_.send(request);
  while (true) {
    while (auto message = session_.next()) {
      if (id_of(*message) != id) continue;
      if (auto* failed = std::get_if<Failed>(&*message)) {
        raise(failed->kind, failed->message, failed->ranks);
      }
      return std::move(*message);
    }
    const Arrival arrival = session_.ending() == Ending::kNone ? exchange(deadline) : Arrival::kEnd;
    if (arrival == Arrival::kEnd) {
      fd_.reset();
      lost();
    }
    if (arrival == Arrival::kLate) {
      throw Timeout(
          fmt::format("the rendezvous {} did not answer rank {} in time; see whether it is "
                      "overloaded, or allow more time (LOCKSTEP_TIMEOUT)",
                      to_string(address_), rank_));
    }
  }
}

// Writes all output of the session, then waits for something to arrive.
RendezvousClient::Arrival RendezvousClient::exchange(Deadline deadline) {
  if (!flush(deadline)) return deadline.expired() ? Arrival::kLate : Arrival::kEnd;
  char chunk[16384];
  while (true) {
    const ssize_t got = ::recv(fd_.get(), chunk, sizeof chunk, MSG_DONTWAIT);
    if (got > 0) {
      session_.receive(std::string_view(chunk, static_cast<std::size_t>(got)));
      return Arrival::kSome;
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) return Arrival::kEnd;
    if (!base::wait_ready(fd_.get(), POLLIN, deadline)) return Arrival::kLate;
  }
}

bool RendezvousClient::flush(Deadline deadline) {
  const std::string output = session_.take_output();
  return output.empty() || base::write_all(fd_.get(), output, deadline);
}

void RendezvousClient::lost() const {
  throw PeerLost(
      fmt::format("the rendezvous {} went away before the world was formed; see what "
                  "became of rank 0 or the launcher",
                  to_string(address_)));
}

}  // namespace lockstep::control

#include "comm/arena/hand_over.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <numeric>

#include "base/log.h"
#include "base/process.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMostStrangers = 64;
constexpr milliseconds kStrangerPatience{2000};
constexpr milliseconds kPauseBetweenCalls{20};
constexpr milliseconds kPauseBetweenLooks{20};
constexpr int kMostLogged = 8;  // a stranger must not fill a disk with our log

}  // namespace

// If this host lacks something, the failure names this worker, not the peer that it was talking to.
template <typename Call>
auto HandOver::on_own_account(Call&& call) const {
  try {
    return call();
  } catch (const Unavailable& error) {
    throw Unavailable(
        fmt::format("rank {}, which hands its arena over: {}", party_.rank, error.what()),
        {party_.rank});
  }
}

HandOver::HandOver(const Arena& mine, const std::string& name, Bootstrap& bootstrap,
                   Deadline deadline, HandOverOptions options)
    : mine_(mine),
      deadline_(deadline),
      look_(std::move(options.look)),
      party_{bootstrap.secret(), bootstrap.name(), name, bootstrap.rank(), bootstrap.size()},
      listener_(on_own_account(listen_locally)),
      peers_(bootstrap.size()) {
  const std::string prefix = fmt::format("arena/{}/", name);
  const std::string host = host_identity();
  bootstrap.put(
      prefix + std::to_string(party_.rank),
      encode(ArenaOffer{host, listener_.name, mine.size(), ::getpid(), base::process_namespace()}),
      deadline);
  fetch_offers(bootstrap, prefix, host, std::move(options.among));
}

// When the first offer is missing, the time is nearly over. Up to an eighth of it is reserved to
// ask for the remaining offers, so that the error names all workers that are missing.
void HandOver::fetch_offers(Bootstrap& bootstrap, const std::string& prefix,
                            const std::string& own_host, std::vector<int> among) {
  if (among.empty()) {
    among.resize(static_cast<std::size_t>(party_.size));
    std::iota(among.begin(), among.end(), 0);
  }
  const auto reserve = std::min<std::chrono::nanoseconds>(deadline_.left() / 8, milliseconds(500));
  const auto patient = Deadline::at(deadline_.when() - reserve);
  std::vector<int> missing;
  for (const int rank : among) {
    if (rank == party_.rank) continue;
    const auto until =
        missing.empty() ? patient : earlier(deadline_, Deadline::after(reserve / party_.size));
    try {
      auto offer = decode_offer(bootstrap.get(prefix + std::to_string(rank), until));
      if (!offer) {
        throw Mismatch(fmt::format("rank {} hands over its arena in a way that rank {} does not "
                                   "know; build every worker from one version",
                                   rank, party_.rank),
                       {rank});
      }
      if (offer->host != own_host) continue;
      peers_[rank].offer = std::move(offer);
      if (rank > party_.rank) watch(rank);
    } catch (const Timeout&) {
      missing.push_back(rank);
    }
  }
  if (missing.empty()) return;
  throw Timeout(fmt::format("rank {} has not heard of the arena '{}' of rank {}; see what they are "
                            "doing, or allow more time",
                            party_.rank, party_.arena, fmt::join(missing, ", ")),
                missing);
}

// Opens a pidfd for a higher rank. Without one, its death shows only at the deadline.
void HandOver::watch(int rank) {
  Peer& peer = peers_[rank];
  const int process = peer.offer->process;
  if (process <= 0 || process == ::getpid()) return;
  if (peer.offer->process_namespace != base::process_namespace()) return;
  peer.process = base::open_pidfd(process);
  if (!peer.process && errno == ESRCH) fail(rank, ErrorKind::kPeerLost, "it died");
}

std::vector<std::optional<Arena>> HandOver::run() {
  while (anybody_pending() && !deadline_.expired()) {
    call_lower_ranks();
    if (look_) look_();
    if (anybody_pending()) wait_for_news();
    drop_stalling();
    connections_.remove_if([](const Connection& connection) { return !connection.socket; });
  }
  std::vector<std::optional<Arena>> arenas;
  arenas.reserve(peers_.size());
  for (Peer& peer : peers_) {
    if (peer.offer && !peer.arena) report();
    arenas.push_back(std::move(peer.arena));
  }
  arenas[party_.rank] = on_own_account([&] { return Arena::attach(mine_.fd(), mine_.size()); });
  return arenas;
}

bool HandOver::anybody_pending() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.pending(); });
}

void HandOver::call_lower_ranks() {
  const auto now = Deadline::Clock::now();
  for (int rank = 0; rank < party_.rank; ++rank) {
    const Peer& peer = peers_[rank];
    if (peer.pending() && !peer.called && peer.call_at <= now) call(rank);
  }
}

void HandOver::call(int rank) {
  Peer& peer = peers_[rank];
  CallResult result = on_own_account([&] { return call_locally(peer.offer->socket_name); });
  if (result.call == Call::kNobody) {
    return fail(rank, ErrorKind::kPeerLost, "nobody listens at its socket any more");
  }
  if (result.call == Call::kBusy) {
    peer.hindrance = "too many wait at its socket";
    peer.call_at = Deadline::Clock::now() + kPauseBetweenCalls;
    return;
  }
  if (!is_of_this_user(result.socket.get())) {
    return fail(rank, ErrorKind::kPeerLost, "a process of another user listens at its socket");
  }
  peer.called = true;
  connections_.push_back(
      {std::move(result.socket), Session::to(party_, rank), Deadline::Clock::now()});
  answer(connections_.back(), {connections_.back().session.hello()});
}

void HandOver::wait_for_news() {
  std::vector<pollfd> entries{{listener_.socket.get(), POLLIN, 0}};
  std::vector<Connection*> behind{nullptr};
  for (Connection& connection : connections_) {
    if (!connection.socket) continue;
    entries.push_back({connection.socket.get(), POLLIN, 0});
    behind.push_back(&connection);
  }
  const std::size_t connected = entries.size();
  std::vector<int> watched;
  for (int rank = 0; rank < party_.size; ++rank) {
    if (!peers_[rank].pending() || !peers_[rank].process) continue;
    entries.push_back({peers_[rank].process.get(), POLLIN, 0});
    watched.push_back(rank);
  }
  const auto due = next_due();
  auto until = due ? earlier(deadline_, Deadline::at(*due)) : deadline_;
  if (look_) until = earlier(until, Deadline::after(kPauseBetweenLooks));
  if (::poll(entries.data(), entries.size(), until.left_ms()) <= 0) return;
  for (std::size_t i = 1; i < connected; ++i) {
    // Serving an earlier connection may have closed this one.
    if (entries[i].revents != 0 && behind[i]->socket) serve(*behind[i]);
  }
  if (entries[0].revents != 0) accept_all();
  for (std::size_t i = 0; i < watched.size(); ++i) {
    // What it had sent before it died has been served above.
    if (entries[connected + i].revents != 0 && peers_[watched[i]].pending())
      fail(watched[i], ErrorKind::kPeerLost, "it died");
  }
}

// When there will be something to do, even if nothing arrives.
std::optional<HandOver::TimePoint> HandOver::next_due() const {
  std::optional<TimePoint> due;
  const auto consider = [&](TimePoint when) { due = std::min(due.value_or(when), when); };
  for (int rank = 0; rank < party_.rank; ++rank) {
    if (peers_[rank].pending() && !peers_[rank].called) consider(peers_[rank].call_at);
  }
  for (const Connection& connection : connections_) {
    if (connection.unproven()) consider(connection.opened + kStrangerPatience);
  }
  return due;
}

void HandOver::accept_all() {
  while (true) {
    bool exhausted = false;
    base::Fd caller = accept_locally(listener_.socket.get(), exhausted);
    if (exhausted) return drop_oldest_stranger("came when no descriptors were left");
    if (!caller) return;
    const bool from_worker = is_worker(process_behind(caller.get()));
    connections_.push_back(
        {std::move(caller), Session::from_anyone(party_), Deadline::Clock::now(), from_worker});
    if (!is_of_this_user(connections_.back().socket.get())) {
      drop(connections_.back(), "runs as another user");
    }
    const auto strangers = std::count_if(
        connections_.begin(), connections_.end(),
        [](const Connection& connection) { return connection.socket && connection.stranger(); });
    if (static_cast<std::size_t>(strangers) > kMostStrangers) {
      drop_oldest_stranger("came in a crowd");
    }
  }
}

// All workers of a host call at once, so many connections are not a sign of strangers: known
// processes do not count as such.
bool HandOver::is_worker(int process) const {
  return process > 0 && process != ::getpid() &&
         std::any_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
           return peer.offer && peer.offer->process == process &&
                  peer.offer->process_namespace == base::process_namespace();
         });
}

void HandOver::drop_oldest_stranger(const char* why) {
  auto oldest = std::find_if(
      connections_.begin(), connections_.end(),
      [](const Connection& connection) { return connection.socket && connection.stranger(); });
  if (oldest == connections_.end()) {
    oldest = std::find_if(
        connections_.begin(), connections_.end(),
        [](const Connection& connection) { return connection.socket && connection.unproven(); });
  }
  if (oldest == connections_.end()) {
    throw Unavailable(
        fmt::format("rank {} has no descriptors left to hand its arena over; raise `ulimit -n`",
                    party_.rank),
        {party_.rank});
  }
  drop(*oldest, why);
}

void HandOver::drop_stalling() {
  const auto now = Deadline::Clock::now();
  for (Connection& connection : connections_) {
    if (connection.socket && connection.unproven() &&
        connection.opened + kStrangerPatience <= now) {
      drop(connection, "stalled");
    }
  }
}

void HandOver::serve(Connection& connection) {
  Session& session = connection.session;
  const bool expects_arena = session.expects_arena();
  Packet packet = on_own_account([&] {
    return receive_packet(connection.socket.get(), kMostPacketBytes,
                          expects_arena ? Descriptors::kTaken : Descriptors::kRefused);
  });
  if (packet.arrival == Arrival::kNothingYet) return;
  if (packet.arrival == Arrival::kEnd) return ended(connection, "closed the connection");
  if (packet.arrival == Arrival::kBadPacket) {
    return ended(connection, "sent a packet with more in it than there is room for");
  }
  if (expects_arena && !take_arena(connection, std::move(packet.descriptors))) return;
  const auto reply = session.receive(packet.bytes);
  if (session.state() == Session::State::kEnded) return ended(connection, session.why());
  if (!session.connects() && !peers_[session.peer()].offer) {
    return ended(connection, "claims the rank of a worker of another host");
  }
  if (reply) answer(connection, *reply);
  if (session.state() == Session::State::kDone) connection.socket.reset();
}

// Maps what a proven peer has sent. False if it is not the arena of its offer.
bool HandOver::take_arena(Connection& connection, std::vector<base::Fd> descriptors) {
  const int rank = connection.session.peer();
  Peer& peer = peers_[rank];
  try {
    if (descriptors.size() != 1) throw Mismatch("it did not send one descriptor");
    peer.arena =
        on_own_account([&] { return Arena::attach(descriptors[0].get(), peer.offer->bytes); });
    return true;
  } catch (const Mismatch& error) {
    fail(rank, error.kind(), error.what());
    connection.socket.reset();
    return false;
  }
}

void HandOver::answer(Connection& connection, const Session::Reply& reply) {
  const bool sent = on_own_account([&] {
    return send_packet(connection.socket.get(), reply.packet, reply.with_arena ? mine_.fd() : -1);
  });
  if (!sent) ended(connection, "does not take what is sent to it");
}

// A connection has failed. What that means depends on the other side.
void HandOver::ended(Connection& connection, const std::string& why) {
  if (connection.unproven()) return drop(connection, why);
  const Session& session = connection.session;
  const int rank = session.peer();
  Peer& peer = peers_[rank];
  connection.socket.reset();
  if (session.connects() && session.state() == Session::State::kShaking) {
    // It took this worker for a stranger, or it has died. The next call shows which.
    peer.called = false;
    peer.call_at = Deadline::Clock::now() + kPauseBetweenCalls;
    peer.hindrance = "it " + why;
    return;
  }
  peer.arena.reset();
  fail(rank, ErrorKind::kPeerLost, "it " + why);
}

void HandOver::drop(Connection& connection, const std::string& why) {
  connection.socket.reset();
  if (connection.from_worker) return;  // it calls again
  if (++strangers_dropped_ > kMostLogged) return;
  base::log(base::LogLevel::kWarn, "rank {} dropped a stranger at its arena's socket: it {}{}",
            party_.rank, why,
            strangers_dropped_ == kMostLogged ? "; more of them are not logged" : "");
}

void HandOver::fail(int rank, ErrorKind kind, const std::string& what) {
  if (!peers_[rank].failing) peers_[rank].failing = Failing{kind, what};
}

// Throws what happened to the peers. The first one that failed decides the kind of error; if none
// failed, some are late.
void HandOver::report() const {
  std::vector<int> late;
  std::vector<int> failed;
  std::string why;
  ErrorKind kind = ErrorKind::kTimeout;
  for (int rank = 0; rank < party_.size; ++rank) {
    const Peer& peer = peers_[rank];
    if (peer.pending()) {
      late.push_back(rank);
      if (!peer.hindrance.empty()) why += fmt::format("; rank {}: {}", rank, peer.hindrance);
    } else if (peer.failing) {
      if (failed.empty()) kind = peer.failing->kind;
      failed.push_back(rank);
      why += fmt::format("; rank {}: {}", rank, peer.failing->what);
    }
  }
  if (!failed.empty()) {
    raise(kind,
          fmt::format("rank {} did not get the arena '{}' of rank {}{}", party_.rank, party_.arena,
                      fmt::join(failed, ", "), why),
          failed);
  }
  throw Timeout(
      fmt::format("rank {} waited for the arena '{}' of rank {} until its deadline{}; see "
                  "what they are doing, or allow more time",
                  party_.rank, party_.arena, fmt::join(late, ", "), why),
      late);
}

}  // namespace lockstep::comm

namespace lockstep {

std::vector<std::optional<Arena>> share_arenas(const Arena& mine, const std::string& name,
                                               Bootstrap& bootstrap, Deadline deadline) {
  return comm::HandOver(mine, name, bootstrap, deadline).run();
}

}  // namespace lockstep

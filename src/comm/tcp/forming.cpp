#include "comm/tcp/forming.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "base/bytes.h"

namespace lockstep::comm {
namespace {

using base::PairProof;
using std::chrono::milliseconds;

constexpr milliseconds kProofTime{5000};  // for one connection
constexpr milliseconds kCallAgain{50};
constexpr int kMostCalls = 20;
// Strangers that may be connected at a time, beside those who belong here. If there are more, the
// oldest goes, first of those who have not even said hello.
constexpr std::size_t kMostStrangers = 64;
constexpr int kMostLetIn = 16;
constexpr std::size_t kMostText = 256;

}  // namespace

std::string encode(const TcpPlace& place) {
  return base::ByteWriter()
      .put_text(place.address.host)
      .put(std::int32_t{place.address.port})
      .put_text(place.host)
      .put(static_cast<std::uint8_t>(place.wire))
      .take();
}

std::optional<TcpPlace> decode_place(std::string_view bytes) {
  base::ByteReader reader(bytes);
  TcpPlace place;
  place.address.host = reader.get_text(kMostText);
  place.address.port = reader.get<std::int32_t>();
  place.host = reader.get_text(kMostText);
  const auto wire = reader.get<std::uint8_t>();
  if (wire > static_cast<std::uint8_t>(Wire::kTagged)) return std::nullopt;
  place.wire = static_cast<Wire>(wire);
  if (!reader.done() || place.address.port < 1 || place.address.port > 65535) return std::nullopt;
  return place;
}

Forming::Forming(base::PairWorld world, TcpListener listener, std::vector<TcpPlace> places)
    : world_(std::move(world)),
      listener_(std::move(listener)),
      places_(std::move(places)),
      calls_(static_cast<std::size_t>(world_.rank)),
      proven_(places_.size()) {}

std::vector<std::optional<TcpConnection>> Forming::run(Deadline deadline) {
  while (!complete()) {
    if (deadline.expired()) late();
    call_missing();
    poll_once(deadline);
    drop_old();
  }
  return std::move(proven_);
}

bool Forming::complete() const {
  for (std::size_t rank = 0; rank < proven_.size(); ++rank) {
    if (!proven_[rank] && rank != static_cast<std::size_t>(world_.rank)) return false;
  }
  return true;
}

void Forming::call_missing() {
  const auto now = Clock::now();
  for (std::size_t rank = 0; rank < calls_.size(); ++rank) {
    Calls& calls = calls_[rank];
    if (proven_[rank] || calls.pending || calls.next > now) continue;
    auto proof = PairProof::caller(world_, static_cast<int>(rank));
    Pending pending{begin_to_connect(places_[rank].address),
                    proof,
                    true,
                    true,
                    {},
                    proof.start(),
                    now + kProofTime};
    if (!pending.socket) {
      give_up(pending);
      continue;
    }
    calls.pending = true;
    pending_.push_back(std::move(pending));
  }
}

// A few at a time: those who are in have their turn before more come.
void Forming::let_in() {
  for (int i = 0; i < kMostLetIn; ++i) {
    base::Fd socket = accept_next(listener_);
    if (!socket) return;
    pending_.push_back({std::move(socket),
                        PairProof::listener(world_),
                        false,
                        false,
                        {},
                        {},
                        Clock::now() + kProofTime});
  }
}

void Forming::poll_once(Deadline deadline) {
  std::vector<pollfd> polled{{listener_.socket.get(), POLLIN, 0}};
  for (const Pending& pending : pending_) {
    const bool writes = pending.connecting || !pending.out.empty();
    polled.push_back({pending.socket.get(), static_cast<short>(writes ? POLLOUT : POLLIN), 0});
  }
  const std::size_t first_proven = polled.size();
  for (const auto& proven : proven_)
    polled.push_back({proven ? proven->socket.get() : -1, POLLRDHUP, 0});
  const int wait = std::min(deadline.left_ms(), static_cast<int>(kCallAgain.count()));
  if (::poll(polled.data(), polled.size(), wait) <= 0) return;
  // A worker that has gone again may come again, or is found to be gone when it is called.
  for (std::size_t rank = 0; rank < proven_.size(); ++rank) {
    if (polled[first_proven + rank].revents != 0) proven_[rank].reset();
  }
  std::size_t next = 1;
  for (auto pending = pending_.begin(); pending != pending_.end(); ++next) {
    const short events = polled[next].revents;
    const bool goes_on = events == 0 || go_on(*pending, events);
    pending = goes_on ? std::next(pending) : pending_.erase(pending);
  }
  if (polled[0].revents != 0) let_in();
}

bool Forming::go_on(Pending& pending, short events) {
  if (pending.connecting) {
    if (!connected(pending.socket.get())) {
      give_up(pending);
      return false;
    }
    pending.connecting = false;
  }
  const bool alive = (events & POLLOUT) != 0 ? send(pending) : receive(pending);
  if (alive && pending.proof.state() == PairProof::State::kOpen && pending.out.empty()) {
    keep(pending);
    return false;
  }
  if (alive && pending.proof.state() == PairProof::State::kEnded && pending.out.empty()) {
    give_up(pending);
    return false;
  }
  if (!alive) give_up(pending);
  return alive;
}

bool Forming::send(Pending& pending) const {
  const ssize_t sent = ::send(pending.socket.get(), pending.out.data(), pending.out.size(),
                              MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) return errno == EAGAIN || errno == EINTR;
  pending.out.erase(0, static_cast<std::size_t>(sent));
  return true;
}

// Takes no byte that comes after the proof.
bool Forming::receive(Pending& pending) {
  char bytes[128];
  const std::size_t wanted = pending.proof.wants() - pending.in.size();
  const ssize_t count =
      ::recv(pending.socket.get(), bytes, std::min(wanted, sizeof bytes), MSG_DONTWAIT);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  if (count == 0) return false;
  pending.in.append(bytes, static_cast<std::size_t>(count));
  if (pending.in.size() < pending.proof.wants()) return true;
  pending.out += pending.proof.receive(std::exchange(pending.in, {}));
  if (!pending.out.empty()) return send(pending);
  return true;
}

// If a caller was here before, it has given that connection up.
void Forming::keep(Pending& pending) {
  const auto rank = static_cast<std::size_t>(pending.proof.peer());
  const base::PairKeys keys = pending.proof.keys();
  if (pending.calls) calls_[rank].pending = false;
  proven_[rank] = {std::move(pending.socket), pending.calls ? keys.to_listener : keys.to_caller,
                   pending.calls ? keys.to_caller : keys.to_listener};
}

// Called workers are known to be workers: they have said where they are. So if one of them cannot
// be reached, or does not accept this worker, there is no reason to wait until the deadline.
void Forming::give_up(const Pending& pending) {
  if (!pending.calls) {
    ++strangers_;
    return;
  }
  const int peer = pending.proof.peer();
  const TcpAddress& address = places_[static_cast<std::size_t>(peer)].address;
  const auto ending = pending.proof.ending();
  const std::string text =
      fmt::format("rank {} at {} port {} {}", peer, address.host, address.port, describe(ending));
  if (ending == PairProof::Ending::kOtherVersion) throw Mismatch(text, {peer});
  if (ending == PairProof::Ending::kNoSecret) throw PeerLost(text, {peer});
  Calls& calls = calls_[static_cast<std::size_t>(peer)];
  calls.pending = false;
  calls.next = Clock::now() + kCallAgain;
  // A crowd of strangers may have pushed this worker out before it could prove anything.
  if (!pending.connecting && !pending.proof.answered()) return;
  if (++calls.failed < kMostCalls) return;
  throw PeerLost(
      fmt::format("rank {} could not be reached at {} port {} in {} calls: it has ended, it does "
                  "not know this worker's secret, or a firewall is between the hosts",
                  peer, address.host, address.port, kMostCalls),
      {peer});
}

void Forming::drop_old() {
  const auto now = Clock::now();
  std::size_t strangers = 0;
  for (auto pending = pending_.begin(); pending != pending_.end();) {
    if (pending->until < now) {
      give_up(*pending);
      pending = pending_.erase(pending);
      continue;
    }
    if (!pending->calls) ++strangers;
    ++pending;
  }
  const std::size_t most = kMostStrangers + proven_.size();
  for (const bool greeted : {false, true}) {
    for (auto pending = pending_.begin(); pending != pending_.end() && strangers > most;) {
      if (pending->calls || pending->proof.answered() != greeted) {
        ++pending;
        continue;
      }
      give_up(*pending);
      pending = pending_.erase(pending);
      --strangers;
    }
  }
}

void Forming::late() const {
  std::vector<int> missing;
  for (std::size_t rank = 0; rank < proven_.size(); ++rank) {
    if (!proven_[rank] && rank != static_cast<std::size_t>(world_.rank))
      missing.push_back(static_cast<int>(rank));
  }
  throw Timeout(
      fmt::format("rank {} has no connection with rank{} {} in time{}", world_.rank,
                  missing.size() == 1 ? "" : "s", fmt::join(missing, ", "),
                  strangers_ == 0
                      ? std::string()
                      : fmt::format("; {} connections did not prove the secret", strangers_)),
      missing);
}

}  // namespace lockstep::comm

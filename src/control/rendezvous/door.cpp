#include "control/rendezvous/door.h"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>

#include "base/log.h"

namespace lockstep::control {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr int kMostAtOnce = 64;  // connections taken in before others are served
constexpr int kMostLogLines = 5;
constexpr std::chrono::seconds kLogWindow{10};
constexpr std::chrono::milliseconds kPauseWithoutDescriptors{50};

// A peer that asks for more than this without reading the answers is dropped.
constexpr std::size_t kMostUnsentBytes = 16 * kMostFrameBytes;

std::string who_is(int fd) {
  const SocketAddress peer = peer_address(fd);
  if (peer.family() != AF_UNIX) {
    return fmt::format("{} port {}", numeric_host(peer), port_of(peer));
  }
  const ucred credentials = peer_credentials(fd);
  return fmt::format("pid {} of user {}", credentials.pid, credentials.uid);
}

}  // namespace

Connection::Connection(asio::io_context& context, ConnectionId id, base::Fd fd, Session session,
                       std::weak_ptr<ConnectionOwner> owner)
    : id_(id),
      socket_(context),
      timer_(context),
      session_(std::move(session)),
      owner_(std::move(owner)) {
  const int family = local_address(fd.get()).family();
  socket_.assign(asio::generic::stream_protocol(family, 0), fd.release());
}

void Connection::start(std::chrono::milliseconds time_to_prove) {
  timer_.expires_after(time_to_prove);
  timer_.async_wait([self = shared_from_this()](error_code error) {
    if (!error && !self->trusted_) self->end({"did not prove the secret in time"});
  });
  read();
  write();
}

void Connection::trust() {
  trusted_ = true;
  timer_.cancel();
}

void Connection::send(const Message& message) {
  session_.send(message);
  write();
}

void Connection::end(Departure departure) {
  if (over_) return;
  departure.proven = session_.open();
  asio::post(socket_.get_executor(), [owner = owner_, id = id_, departure = std::move(departure)] {
    if (const auto alive = owner.lock()) alive->on_end(id, departure);
  });
  abandon();
}

void Connection::abandon() {
  over_ = true;
  error_code ignored;
  socket_.close(ignored);
  timer_.cancel();
}

Departure Connection::session_over() const {
  return {describe(session_.ending()), false, session_.ending(), session_.peer_version()};
}

void Connection::read() {
  socket_.async_read_some(asio::buffer(input_),
                          [self = shared_from_this()](error_code error, std::size_t count) {
                            if (self->over_) return;
                            if (error) return self->end({"closed the connection", true});
                            self->on_read(count);
                          });
}

void Connection::on_read(std::size_t count) {
  session_.receive(std::string_view(input_.data(), count));
  while (const auto message = session_.next()) {
    const auto owner = owner_.lock();
    if (!owner || over_) return;
    if (!owner->on_message(id_, *message)) return end({"sent a message out of place"});
    if (over_) return;
  }
  write();
  if (over_) return;
  // A session that has ended reads no more. The connection ends when the refusal is written.
  if (session_.ending() == Ending::kNone) {
    read();
  } else if (sending_.empty()) {
    end(session_over());
  }
}

void Connection::write() {
  unsent_ += session_.take_output();
  if (unsent_.size() > kMostUnsentBytes) return end({"does not read its answers"});
  if (over_ || unsent_.empty() || !sending_.empty()) return;
  sending_ = std::exchange(unsent_, {});
  asio::async_write(socket_, asio::buffer(sending_),
                    [self = shared_from_this()](error_code error, std::size_t) {
                      if (self->over_) return;
                      if (error) return self->end({"closed the connection", true});
                      self->on_written();
                    });
}

void Connection::on_written() {
  sending_.clear();
  write();
  if (sending_.empty() && session_.ending() != Ending::kNone) end(session_over());
}

Door::Door(asio::io_context& context, Listener listener, DoorOptions options)
    : context_(context),
      options_(std::move(options)),
      address_(std::move(listener.address)),
      listening_(context, listener.fd.release()),
      limiter_(kMostLogLines, kLogWindow) {}

void Door::wait_for_guests() {
  listening_.async_wait(asio::posix::stream_descriptor::wait_read,
                        [self = shared_from_this()](error_code error) {
                          if (!error) self->accept_all();
                        });
}

void Door::accept_all() {
  int error = 0;
  for (int i = 0; i < kMostAtOnce && error == 0; ++i) error = accept_one();
  if (error == EMFILE || error == ENFILE) {
    if (!drop_oldest_unproven("gave way: no descriptors are left")) return pause_accepting();
  }
  wait_for_guests();
}

// 0, or the errno that says why nobody came in.
int Door::accept_one() {
  base::Fd fd(
      ::accept4(listening_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd) return errno == EINTR || errno == ECONNABORTED ? 0 : errno;
  if (address_.kind == Address::Kind::kTcp) {
    tune_tcp(fd.get());
  } else if (peer_credentials(fd.get()).uid != ::geteuid()) {
    stranger(who_is(fd.get()), {"is another user"});
    return 0;
  }
  admit(std::move(fd));
  return 0;
}

void Door::admit(base::Fd fd) {
  if (unproven_.size() >= options_.most_unproven)
    drop_oldest_unproven("gave way to newer connections");
  const ConnectionId id = ++last_id_;
  Guest guest{nullptr, who_is(fd.get())};
  guest.connection = std::make_shared<Connection>(
      context_, id, std::move(fd), Session(Handshake(Role::kRendezvous, options_.secret)),
      weak_from_this());
  Guest& kept = guests_[id] = std::move(guest);
  unproven_[id] = &kept;
  kept.connection->start(options_.time_to_prove);
}

bool Door::drop_oldest_unproven(const char* why) {
  if (unproven_.empty()) return false;
  const auto [id, guest] = *unproven_.begin();
  guest->connection->abandon();
  on_end(id, {why});
  return true;
}

// Without descriptors nobody can be accepted, but the socket stays readable: waiting for it would spin.
void Door::pause_accepting() {
  auto pause = std::make_shared<asio::steady_timer>(context_, kPauseWithoutDescriptors);
  pause->async_wait([self = shared_from_this(), pause](error_code) {
    if (self->listening_.is_open()) self->wait_for_guests();
  });
}

bool Door::on_message(ConnectionId from, const Message& message) {
  if (!when_message || !when_message(from, message)) return false;
  if (unproven_.erase(from) == 1) guests_.at(from).connection->trust();
  return true;
}

void Door::on_end(ConnectionId id, const Departure& departure) {
  const auto entry = guests_.find(id);
  if (entry == guests_.end()) return;
  // Somebody may have taken over a connection that does not end in order.
  const bool unproven = unproven_.erase(id) == 1;
  if (unproven || !departure.in_order) stranger(entry->second.who, departure);
  guests_.erase(entry);
  if (when_gone) when_gone(id);
}

void Door::send(ConnectionId to, const Message& message) {
  const auto guest = guests_.find(to);
  if (guest != guests_.end()) guest->second.connection->send(message);
}

void Door::stranger(const std::string& who, const Departure& departure) {
  ++strangers_;
  if (when_stranger && when_stranger(who, departure)) return;
  const auto swallowed = limiter_.pass(std::chrono::steady_clock::now());
  if (!swallowed) return;
  base::log(base::LogLevel::kWarn, "rendezvous {}: dropped a connection of {}: it {}{}",
            to_string(address_), who, departure.why,
            *swallowed == 0 ? "" : fmt::format(" ({} more dropped since)", *swallowed));
}

void Door::close() {
  error_code ignored;
  listening_.close(ignored);
  for (const auto& [id, guest] : unproven_) {
    guest->connection->abandon();
    guests_.erase(id);
  }
  unproven_.clear();
}

void Door::shut_down() {
  close();
  for (auto& [id, guest] : guests_) guest.connection->abandon();
  guests_.clear();
  when_message = nullptr;
  when_gone = nullptr;
  when_stranger = nullptr;
}

std::optional<std::uint64_t> LogLimiter::pass(TimePoint now) {
  if (now >= window_end_) {
    window_end_ = now + window_;
    passed_ = 0;
  }
  if (passed_ == most_) {
    ++swallowed_;
    return std::nullopt;
  }
  ++passed_;
  return std::exchange(swallowed_, 0);
}

}  // namespace lockstep::control

#include "control/rendezvous/server.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <csignal>
#include <future>
#include <map>
#include <system_error>
#include <thread>

#include "base/log.h"
#include "control/rendezvous/handshake.h"
#include "control/rendezvous/roster.h"
#include "control/rendezvous/sockets.h"

namespace lockstep::control {
namespace {

namespace asio = boost::asio;
using base::LogLevel;
using boost::system::error_code;

constexpr int kMostAtOnce = 64;  // connections taken in before others are served
constexpr int kMostLogLines = 5;
constexpr std::chrono::seconds kLogWindow{10};
constexpr std::chrono::milliseconds kPauseWithoutDescriptors{50};

// A peer that asks for more than this without reading the answers is dropped.
constexpr std::size_t kMostUnsentBytes = 16 * kMostFrameBytes;

struct Departure {
  std::string why;        // a phrase: "closed the connection"
  bool in_order = false;  // workers may end like this, too: no sign of a stranger
};

// What a connection tells its owner, the server's State. An interface, because the State is private.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;

  // A genuine message; false: it makes no sense, end the connection.
  virtual bool on_message(ConnectionId from, const Message& message) = 0;
  // The connection is over. Called once, from the io_context: never from within a call of the owner.
  virtual void on_end(ConnectionId connection, const Departure& departure) = 0;
};

// One connection: a socket around a Session.
//
// Threads:   those of its io_context, one at a time.
// Blocking:  never.
// Failure:   ends, and tells its owner why.
// Ownership: owns the socket; outstanding operations keep it alive; the owner must outlive it or
//            call abandon().
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(asio::io_context& context, ConnectionId id, base::Fd fd, Session session,
             std::weak_ptr<ConnectionOwner> owner);

  // Begins to read. A peer that is not trust()ed within `time_to_prove` is dropped.
  void start(std::chrono::milliseconds time_to_prove);
  void trust();
  bool trusted() const { return trusted_; }

  void send(const Message& message);

  // Ends it now; the owner hears of it from the io_context.
  void end(Departure departure);
  // Ends it now, and the owner hears nothing.
  void abandon();

 private:
  void read();
  void on_read(std::size_t count);
  void write();
  void on_written();

  ConnectionId id_;
  asio::generic::stream_protocol::socket socket_;
  asio::steady_timer timer_;
  Session session_;
  std::weak_ptr<ConnectionOwner> owner_;
  std::array<char, 4096> input_;
  std::string unsent_;
  std::string sending_;
  bool trusted_ = false;
  bool over_ = false;
};

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
    end({describe(session_.ending())});
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
  if (sending_.empty() && session_.ending() != Ending::kNone) end({describe(session_.ending())});
}

struct Guest {
  std::shared_ptr<Connection> connection;
  std::string who;  // "pid 12 of user 1000", "10.0.0.7 port 41234"
};

std::string who_is(int fd) {
  const SocketAddress peer = peer_address(fd);
  if (peer.family() != AF_UNIX) {
    return fmt::format("{} port {}", numeric_host(peer), port_of(peer));
  }
  const ucred credentials = peer_credentials(fd);
  return fmt::format("pid {} of user {}", credentials.pid, credentials.uid);
}

// Signals belong to the program. Its handlers must not run on a thread of ours, so that thread starts with all of them
// blocked: a new thread inherits the mask of the thread that makes it.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

class RendezvousServer::State : public ConnectionOwner,
                                public std::enable_shared_from_this<RendezvousServer::State> {
 public:
  State(asio::io_context& context, Listener listener, ServerOptions options)
      : context_(context),
        options_(std::move(options)),
        address_(std::move(listener.address)),
        listening_(context, listener.fd.release()),
        timer_(context),
        roster_(options_.world_size) {}

  void wait_for_guests();
  void close(std::function<void()> when_empty);
  void shut_down();

  bool on_message(ConnectionId from, const Message& message) override;
  void on_end(ConnectionId id, const Departure& departure) override;

  const Address& address() const { return address_; }
  std::uint64_t strangers() const { return strangers_; }
  std::size_t connections() const { return guests_.size(); }

 private:
  void accept_all();
  int accept_one();
  void admit(base::Fd fd);
  void make_room();
  bool drop_oldest_unproven(const char* why);
  void pause_accepting();

  void deliver(const Answers& answers);
  void arm_timer();
  void stranger(const std::string& who, const std::string& why);
  void close_if_settled();

  asio::io_context& context_;
  ServerOptions options_;
  Address address_;
  asio::posix::stream_descriptor listening_;
  asio::steady_timer timer_;
  RendezvousRoster roster_;
  std::map<ConnectionId, Guest> guests_;     // by age
  std::map<ConnectionId, Guest*> unproven_;  // those of them that have not joined
  ConnectionId last_id_ = 0;
  std::uint64_t strangers_ = 0;
  LogLimiter limiter_{kMostLogLines, kLogWindow};
  std::function<void()> when_empty_;
};

void RendezvousServer::State::wait_for_guests() {
  listening_.async_wait(asio::posix::stream_descriptor::wait_read,
                        [self = shared_from_this()](error_code error) {
                          if (!error) self->accept_all();
                        });
}

void RendezvousServer::State::accept_all() {
  int error = 0;
  for (int i = 0; i < kMostAtOnce && error == 0; ++i) error = accept_one();
  if (error == EMFILE || error == ENFILE) {
    if (!drop_oldest_unproven("gave way: no descriptors are left")) return pause_accepting();
  }
  wait_for_guests();
}

// 0, or the errno that says why nobody came in.
int RendezvousServer::State::accept_one() {
  base::Fd fd(
      ::accept4(listening_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd) return errno == EINTR || errno == ECONNABORTED ? 0 : errno;
  if (address_.kind == Address::Kind::kTcp) {
    tune_tcp(fd.get());
  } else if (peer_credentials(fd.get()).uid != ::geteuid()) {
    stranger(who_is(fd.get()), "is another user");
    return 0;
  }
  admit(std::move(fd));
  return 0;
}

void RendezvousServer::State::admit(base::Fd fd) {
  make_room();
  const ConnectionId id = ++last_id_;
  Guest guest{nullptr, who_is(fd.get())};
  guest.connection = std::make_shared<Connection>(
      context_, id, std::move(fd), Session(Handshake(Role::kRendezvous, options_.secret)),
      weak_from_this());
  Guest& kept = guests_[id] = std::move(guest);
  unproven_[id] = &kept;
  kept.connection->start(options_.time_to_prove);
}

void RendezvousServer::State::make_room() {
  // All workers of a large world may connect at once.
  const auto most = static_cast<std::size_t>(std::max(options_.most_unproven, options_.world_size));
  if (unproven_.size() >= most) drop_oldest_unproven("gave way to newer connections");
}

bool RendezvousServer::State::drop_oldest_unproven(const char* why) {
  if (unproven_.empty()) return false;
  const auto [id, guest] = *unproven_.begin();
  guest->connection->abandon();
  on_end(id, {why});
  return true;
}

// Without descriptors nobody can be accepted, but the socket stays readable: waiting for it would spin.
void RendezvousServer::State::pause_accepting() {
  auto pause = std::make_shared<asio::steady_timer>(context_, kPauseWithoutDescriptors);
  pause->async_wait([self = shared_from_this(), pause](error_code) {
    if (self->listening_.is_open()) self->wait_for_guests();
  });
}

bool RendezvousServer::State::on_message(ConnectionId from, const Message& message) {
  Answers answers;
  const bool sense = roster_.take(from, message, std::chrono::steady_clock::now(), answers);
  if (sense && unproven_.erase(from) == 1) guests_.at(from).connection->trust();
  deliver(answers);
  arm_timer();
  return sense;
}

void RendezvousServer::State::on_end(ConnectionId id, const Departure& departure) {
  const auto entry = guests_.find(id);
  if (entry == guests_.end()) return;
  // Somebody may have taken over a connection that does not end in order.
  const bool unproven = unproven_.erase(id) == 1;
  if (unproven || !departure.in_order) stranger(entry->second.who, departure.why);
  guests_.erase(entry);
  Answers answers;
  roster_.lost(id, answers);
  deliver(answers);
  arm_timer();
  close_if_settled();
}

void RendezvousServer::State::deliver(const Answers& answers) {
  for (const Answer& answer : answers) {
    const auto guest = guests_.find(answer.to);
    if (guest != guests_.end()) guest->second.connection->send(answer.message);
  }
}

void RendezvousServer::State::arm_timer() {
  const auto when = roster_.next_tick();
  if (timer_.expiry() == when.value_or(TimePoint::max())) return;
  timer_.expires_at(when.value_or(TimePoint::max()));
  if (!when) return;
  timer_.async_wait([self = shared_from_this()](error_code error) {
    if (error) return;
    Answers answers;
    self->roster_.tick(std::chrono::steady_clock::now(), answers);
    self->deliver(answers);
    self->arm_timer();
  });
}

void RendezvousServer::State::stranger(const std::string& who, const std::string& why) {
  ++strangers_;
  const auto swallowed = limiter_.pass(std::chrono::steady_clock::now());
  if (!swallowed) return;
  base::log(LogLevel::kWarn, "rendezvous {}: dropped a connection of {}: it {}{}",
            to_string(address_), who, why,
            *swallowed == 0 ? "" : fmt::format(" ({} more dropped since)", *swallowed));
}

void RendezvousServer::State::close(std::function<void()> when_empty) {
  when_empty_ = std::move(when_empty);
  Answers answers;
  roster_.close(answers);
  deliver(answers);
  close_if_settled();
}

void RendezvousServer::State::close_if_settled() {
  if (!when_empty_ || roster_.has_news()) return;
  error_code ignored;
  listening_.close(ignored);
  for (const auto& [id, guest] : unproven_) {
    guest->connection->abandon();
    guests_.erase(id);
  }
  unproven_.clear();
  if (guests_.empty()) std::exchange(when_empty_, nullptr)();
}

void RendezvousServer::State::shut_down() {
  error_code ignored;
  listening_.close(ignored);
  timer_.cancel();
  for (auto& [id, guest] : guests_) guest.connection->abandon();
  unproven_.clear();
  guests_.clear();
}

RendezvousServer::RendezvousServer(asio::io_context& context, Listener listener,
                                   ServerOptions options) {
  if (listener.address.kind == Address::Kind::kTcp && options.secret.empty()) {
    throw BadInput(
        fmt::format("the rendezvous {} is on a network and has no secret; set "
                    "LOCKSTEP_SECRET_FILE to a file that only you can read",
                    to_string(listener.address)));
  }
  state_ = std::make_shared<State>(context, std::move(listener), std::move(options));
  state_->wait_for_guests();
}

// Outstanding operations may keep the State alive beyond this.
RendezvousServer::~RendezvousServer() {
  state_->shut_down();
}

const Address& RendezvousServer::address() const {
  return state_->address();
}

void RendezvousServer::close(std::function<void()> when_empty) {
  state_->close(std::move(when_empty));
}

std::uint64_t RendezvousServer::strangers() const {
  return state_->strangers();
}

std::size_t RendezvousServer::connections() const {
  return state_->connections();
}

struct HostedRendezvous::State {
  State(Listener listener, ServerOptions options)
      : server(context, std::move(listener), std::move(options)) {}
  ~State() {
    context.stop();
    if (thread.joinable()) thread.join();
  }

  boost::asio::io_context context{1};
  RendezvousServer server;
  std::thread thread;
};

HostedRendezvous::HostedRendezvous(Listener listener, ServerOptions options)
    : state_(std::make_unique<State>(std::move(listener), std::move(options))) {
  const SignalsBlocked blocked;
  try {
    state_->thread = std::thread([state = state_.get()] {
      const auto keep_running = boost::asio::make_work_guard(state->context);
      state->context.run();
    });
  } catch (const std::system_error& error) {
    throw Unavailable(std::string("cannot start the rendezvous's thread: ") + error.what() +
                      "; raise `ulimit -u`");
  }
}

HostedRendezvous::~HostedRendezvous() = default;

const Address& HostedRendezvous::address() const {
  return state_->server.address();
}

void HostedRendezvous::finish(Deadline deadline) {
  auto empty = std::make_shared<std::promise<void>>();
  boost::asio::post(state_->context, [state = state_.get(), empty] {
    state->server.close([empty] { empty->set_value(); });
  });
  empty->get_future().wait_until(deadline.when());
  state_.reset();
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

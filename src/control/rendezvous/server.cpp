#include "control/rendezvous/server.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <pthread.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <future>
#include <system_error>
#include <thread>

#include "control/rendezvous/door.h"
#include "control/rendezvous/roster.h"

namespace lockstep::control {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

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

DoorOptions door_options(const ServerOptions& options) {
  // All workers of a large world may connect at once.
  const int unproven = std::max(options.most_unproven, options.world_size);
  return {options.secret, options.time_to_prove, static_cast<std::size_t>(unproven)};
}

}  // namespace

class RendezvousServer::State : public std::enable_shared_from_this<RendezvousServer::State> {
 public:
  State(asio::io_context& context, Listener listener, const ServerOptions& options)
      : door_(std::make_shared<Door>(context, std::move(listener), door_options(options))),
        timer_(context),
        roster_(options.world_size, options.elastic) {}

  void start();
  void set_alive(std::set<int> places);
  void set_wanted(int places);
  void dismiss(const std::vector<int>& places);
  void set_places(int places) { roster_.set_places(places); }
  void listen(Events events) { events_ = std::move(events); }
  void close(std::function<void()> when_empty);
  void shut_down();

  const Door& door() const { return *door_; }

 private:
  bool take(ConnectionId from, const Message& message);
  void lose(ConnectionId id);
  void deliver(const Answers& answers);
  void spread_events();
  void arm_timer();
  void close_if_settled();

  std::shared_ptr<Door> door_;
  asio::steady_timer timer_;
  RendezvousRoster roster_;
  std::function<void()> when_empty_;
  Events events_;
  int newcomers_ = 0;  // as last told
};

void RendezvousServer::State::start() {
  door_->when_message = [this](ConnectionId from, const Message& message) {
    return take(from, message);
  };
  door_->when_gone = [this](ConnectionId id) { lose(id); };
  door_->start();
}

bool RendezvousServer::State::take(ConnectionId from, const Message& message) {
  Answers answers;
  const bool sense = roster_.take(from, message, std::chrono::steady_clock::now(), answers);
  deliver(answers);
  arm_timer();
  spread_events();
  return sense;
}

void RendezvousServer::State::lose(ConnectionId id) {
  Answers answers;
  roster_.lost(id, answers);
  deliver(answers);
  arm_timer();
  spread_events();
  close_if_settled();
}

void RendezvousServer::State::set_alive(std::set<int> places) {
  Answers answers;
  roster_.set_alive(std::move(places), std::chrono::steady_clock::now(), answers);
  deliver(answers);
  arm_timer();
  spread_events();
}

void RendezvousServer::State::set_wanted(int places) {
  Answers answers;
  roster_.set_wanted(places, std::chrono::steady_clock::now(), answers);
  deliver(answers);
  arm_timer();
  spread_events();
}

void RendezvousServer::State::dismiss(const std::vector<int>& places) {
  Answers answers;
  roster_.dismiss(places, std::chrono::steady_clock::now(), answers);
  deliver(answers);
  arm_timer();
  spread_events();
}

void RendezvousServer::State::spread_events() {
  using Kind = RendezvousRoster::Event::Kind;
  for (const RendezvousRoster::Event& event : roster_.take_events()) {
    if (event.kind == Kind::kFormed) {
      if (events_.formed) events_.formed(event.generation, event.places);
      continue;
    }
    const auto& tell = event.kind == Kind::kExpelled ? events_.expelled : events_.dismissed;
    for (const int place : event.places) {
      if (tell) tell(place);
    }
  }
  const int newcomers = roster_.newcomers();
  if (std::exchange(newcomers_, newcomers) != newcomers && events_.newcomers)
    events_.newcomers(newcomers);
}

void RendezvousServer::State::deliver(const Answers& answers) {
  for (const Answer& answer : answers) door_->send(answer.to, answer.message);
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
    self->spread_events();
  });
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
  door_->close();
  if (door_->connections() == 0) std::exchange(when_empty_, nullptr)();
}

void RendezvousServer::State::shut_down() {
  door_->shut_down();
  timer_.cancel();
}

RendezvousServer::RendezvousServer(asio::io_context& context, Listener listener,
                                   const ServerOptions& options) {
  if (listener.address.kind == Address::Kind::kTcp && options.secret.empty()) {
    throw BadInput(
        fmt::format("the rendezvous {} is on a network and has no secret; set "
                    "LOCKSTEP_SECRET_FILE to a file that only you can read",
                    to_string(listener.address)));
  }
  state_ = std::make_shared<State>(context, std::move(listener), options);
  state_->start();
}

// Outstanding operations may keep the State alive beyond this.
RendezvousServer::~RendezvousServer() {
  state_->shut_down();
}

const Address& RendezvousServer::address() const {
  return state_->door().address();
}

void RendezvousServer::close(std::function<void()> when_empty) {
  state_->close(std::move(when_empty));
}

void RendezvousServer::set_alive(std::set<int> places) {
  state_->set_alive(std::move(places));
}

void RendezvousServer::set_wanted(int places) {
  state_->set_wanted(places);
}

void RendezvousServer::dismiss(const std::vector<int>& places) {
  state_->dismiss(places);
}

void RendezvousServer::set_places(int places) {
  state_->set_places(places);
}

void RendezvousServer::listen(Events events) {
  state_->listen(std::move(events));
}

std::uint64_t RendezvousServer::strangers() const {
  return state_->door().strangers();
}

std::size_t RendezvousServer::connections() const {
  return state_->door().connections();
}

struct HostedRendezvous::State {
  State(Listener listener, const ServerOptions& options)
      : server(context, std::move(listener), options) {}
  ~State() {
    context.stop();
    if (thread.joinable()) thread.join();
  }

  boost::asio::io_context context{1};
  RendezvousServer server;
  std::thread thread;
};

HostedRendezvous::HostedRendezvous(Listener listener, const ServerOptions& options)
    : state_(std::make_unique<State>(std::move(listener), options)) {
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

}  // namespace lockstep::control

#include "control/rendezvous/hosted.h"

#include <lockstep/errors.h>
#include <pthread.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <csignal>
#include <future>
#include <system_error>
#include <thread>

namespace lockstep::control {
namespace {

// Signals are the program's: none may interrupt, or be handled on, a thread that it does not know.
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

HostedRendezvous::HostedRendezvous(HostedRendezvous&&) noexcept = default;
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

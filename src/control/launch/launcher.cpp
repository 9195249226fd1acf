#include "control/launch/launcher.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>  // Boost 1.74's Asio uses std::exchange and does not include this

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <functional>

#include "base/environment.h"
#include "base/log.h"
#include "control/launch/job_state.h"
#include "control/launch/keeper.h"
#include "control/launch/output.h"
#include "control/launch/preparation.h"
#include "control/launch/process_table.h"
#include "control/launch/program.h"
#include "control/rendezvous/server.h"

namespace lockstep::control {
namespace {

using Clock = std::chrono::steady_clock;
using boost::asio::posix::stream_descriptor;

// Longer than the keeper allows itself for its own end.
constexpr std::chrono::seconds kKeeperLimit{12};
constexpr std::chrono::seconds kOwnSweepLimit{5};
// How long to wait for a reader that takes nothing. A person may read in a pager, but a job that
// failed or was told to end does not wait long for it.
constexpr std::chrono::seconds kPatience{30};
constexpr std::chrono::seconds kPatienceWhenEnding{2};

int signal_descriptor() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals_to_forward()) sigaddset(&set, signal);
  return ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

EndRules end_rules(const RunOptions& options) {
  EndRules rules;
  rules.grace = options.grace;
  rules.explained_codes = options.explained_codes;
  rules.stopped_code = options.stopped_code;
  const std::vector<int> signals = signals_to_forward();
  const bool on_terminal = ::isatty(STDOUT_FILENO) == 1 || ::isatty(STDERR_FILENO) == 1;
  rules.hangs_up =
      on_terminal && std::find(signals.begin(), signals.end(), SIGHUP) != signals.end();
  return rules;
}

// The launcher's end of the pipes to its keeper, as events.
//
// Threads:   where the io_context runs.
// Blocking:  never; reap() only after when_gone.
// Failure:   when_gone, once, when the keeper has ended, for any reason.
// Ownership: owns the pipes and reaps the process; the io_context must outlive it.
class KeeperLink {
 public:
  KeeperLink(boost::asio::io_context& context, Keeper keeper);

  std::function<void(const KeeperEvent&)> when_event;
  std::function<void()> when_gone;

  void start() { wait(); }
  bool gone() const { return !events_.is_open(); }

  // A signal for every worker that lives.
  void forward(int signal);

  // Lets the keeper kill everything that is left, and exit.
  void release();

  // For a keeper that did not: the launcher then ends its family itself.
  void kill();

  // How it ended, as a wait status.
  int reap();

 private:
  void wait();
  void read_events();

  pid_t pid_;
  stream_descriptor events_;
  base::Fd lifeline_;
};

KeeperLink::KeeperLink(boost::asio::io_context& context, Keeper keeper)
    : pid_(keeper.pid), events_(context), lifeline_(std::move(keeper.lifeline)) {
  base::set_nonblocking(keeper.events.get());
  events_.assign(keeper.events.release());
}

void KeeperLink::forward(int signal) {
  if (!lifeline_) return;
  // If the pipe is full, somebody has stopped the keeper. The signal is dropped; release() wakes the keeper up.
  const std::int32_t message = signal;
  while (::write(lifeline_.get(), &message, sizeof message) < 0 && errno == EINTR) {
  }
}

void KeeperLink::release() {
  lifeline_.reset();
  ::kill(pid_, SIGCONT);
}

void KeeperLink::kill() {
  ::kill(pid_, SIGKILL);
}

int KeeperLink::reap() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

void KeeperLink::wait() {
  events_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
    if (!error) read_events();
  });
}

void KeeperLink::read_events() {
  std::array<KeeperEvent, 64> events;
  const ssize_t got = ::read(events_.native_handle(), events.data(), sizeof events);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return wait();
  if (got <= 0) {
    events_.close();
    return when_gone();
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(got) / sizeof(KeeperEvent); ++i)
    when_event(events[i]);
  wait();
}

// The effects around JobState: it passes events to JobState and carries its orders out. It decides nothing itself,
// because only decisions without effects can be tested in every order of events.
//
// One thread runs all of it. It waits in the io_context only, so that a slow terminal or a stopped worker never delays
// a signal.
class Launcher {
 public:
  Launcher(const RunOptions& options, Preparation ready, Keeper keeper);

  int run();

 private:
  void wait_for_signals();
  void take_signal(int signal);
  void take_event(const KeeperEvent& event);
  void wait_for_losses();
  void take_losses();
  void take_ends();
  void obey(const JobState::Orders& orders);
  void arm_deadline();
  void on_keeper_gone();
  void finish();
  void conclude();
  void note(const std::string& line);
  std::chrono::seconds patience() const;

  const RunOptions& options_;
  boost::asio::io_context context_;
  JobState state_;
  JobReport report_;
  KeeperLink keeper_;
  RendezvousServer server_;
  stream_descriptor losses_;
  Output output_;
  stream_descriptor signals_;
  boost::asio::steady_timer deadline_;
  boost::asio::steady_timer keeper_limit_;
  std::vector<WorkerEnd> together_;  // ends that were noticed together, so far
};

Launcher::Launcher(const RunOptions& options, Preparation ready, Keeper keeper)
    : options_(options),
      context_(1),
      state_(options.workers, end_rules(options)),
      report_(options, ready.plan.program),
      keeper_(context_, std::move(keeper)),
      server_(context_, std::move(ready.listener), {options.workers, ready.secret}),
      losses_(context_, ready.losses.launcher.release()),
      output_(context_, options.workers, ready.plan, std::move(ready.logs)),
      signals_(context_, signal_descriptor()),
      deadline_(context_),
      keeper_limit_(context_) {
  keeper_.when_event = [this](const KeeperEvent& event) { take_event(event); };
  keeper_.when_gone = [this] { on_keeper_gone(); };
  output_.when_closed = [this](int error) { obey(state_.on_output_closed(error, Clock::now())); };
}

int Launcher::run() {
  output_.resume_streams();
  keeper_.start();
  wait_for_signals();
  wait_for_losses();
  context_.run();
  return state_.exit_code();
}

void Launcher::wait_for_signals() {
  signals_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
    if (error) return;
    signalfd_siginfo info{};
    while (::read(signals_.native_handle(), &info, sizeof info) == sizeof info) {
      take_signal(static_cast<int>(info.ssi_signo));
    }
    wait_for_signals();
  });
}

void Launcher::take_signal(int signal) {
  // No worker is left, and we only wait for slow readers of the output: Ctrl-C ends that.
  if (keeper_.gone() && signal == SIGINT) return context_.stop();
  const bool first = state_.cause() == JobState::Cause::kNone;
  obey(state_.on_signal(signal, Clock::now()));
  if (first && state_.cause() == JobState::Cause::kSignal) {
    note(fmt::format(
        "lockstep: passed SIG{} on; workers have {:g} s to end, Ctrl-C kills them at once",
        sigabbrev_np(signal), static_cast<double>(options_.grace.count()) / 1000));
  }
  // Ctrl-Z stops the launcher, too, as the shell expects.
  if (signal == SIGTSTP) ::kill(::getpid(), SIGSTOP);
}

void Launcher::take_event(const KeeperEvent& event) {
  report_.add(event);
  switch (event.kind) {
    case KeeperEvent::Kind::kNotStarted:
      together_.push_back({event.rank, WorkerEnd::How::kNotStarted, event.value});
      break;
    case KeeperEvent::Kind::kEnded:
      if (!report_.not_started(event.rank))
        together_.push_back(worker_end(event.rank, event.value));
      break;
    case KeeperEvent::Kind::kAllReported:
      take_ends();
      break;
    case KeeperEvent::Kind::kStarted:
    case KeeperEvent::Kind::kSwept:
      break;
  }
}

void Launcher::wait_for_losses() {
  losses_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
    if (error) return;
    take_losses();
    wait_for_losses();
  });
}

void Launcher::take_losses() {
  const auto known = [this](int rank) { return rank >= 0 && rank < options_.workers; };
  while (const auto loss = take_loss(losses_.native_handle())) {
    if (!known(loss->rank)) continue;
    state_.on_loss(loss->rank, known(loss->whom) ? std::optional(loss->whom) : std::nullopt);
  }
}

void Launcher::take_ends() {
  take_losses();  // first: what a worker said before it ended has arrived by now
  const auto orders = state_.on_ends(std::exchange(together_, {}), Clock::now());
  // Before the orders: they continue a stopped worker.
  if (const auto lost = state_.lost()) report_.look_at(*lost);
  obey(orders);
}

void Launcher::obey(const JobState::Orders& orders) {
  for (const int signal : orders.forward) keeper_.forward(signal);
  if (orders.release) {
    keeper_.release();
    keeper_limit_.expires_after(kKeeperLimit);
    keeper_limit_.async_wait([this](const boost::system::error_code& error) {
      if (!error) keeper_.kill();
    });
  }
  arm_deadline();
}

void Launcher::arm_deadline() {
  if (!state_.deadline()) {
    deadline_.cancel();
    return;
  }
  deadline_.expires_at(*state_.deadline());
  deadline_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    if (state_.cause() == JobState::Cause::kSignal) report_.overtime(state_.live());
    obey(state_.on_time(Clock::now()));
  });
}

// Processes that the keeper could not end are now our children, because the launcher is a subreaper, too.
void Launcher::on_keeper_gone() {
  keeper_limit_.cancel();
  const int status = keeper_.reap();
  if (!state_.released()) report_.keeper_lost(status);
  state_.on_keeper_lost();
  deadline_.cancel();
  report_.not_ended(end_descendants(Deadline::after(kOwnSweepLimit)).left);
  output_.drain(patience(), [this] { finish(); });
}

void Launcher::finish() {
  for (const auto& line : report_.failures(state_, output_)) output_.note(line);
  if (!options_.quiet) {
    for (const auto& line : report_.notes(state_)) output_.note(line);
  }
  output_.flush(patience(), [this] { conclude(); });
}

void Launcher::conclude() {
  // Asked here, because when_closed has not been called yet for a write that failed just now.
  if (const auto lost = output_.lost(); !lost.empty()) {
    obey(state_.on_output_closed(lost.front().error, Clock::now()));
  }
  for (const auto& line : JobReport::lost_output(state_, output_)) output_.note(line);
  if (output_.waiting() > 0) {
    output_.note(
        fmt::format("lockstep: dropped {} bytes of output: nobody read them", output_.waiting()));
  }
  context_.stop();
}

void Launcher::note(const std::string& line) {
  if (!options_.quiet) output_.note(line);
}

std::chrono::seconds Launcher::patience() const {
  return state_.cause() == JobState::Cause::kNone ? kPatience : kPatienceWhenEnding;
}

}  // namespace

int run_job(const RunOptions& options) {
  check(options);
  base::set_log_name("launcher");
  const Program program =
      find_program(options.command.front(), base::environment("PATH").value_or("/usr/bin:/bin"));
  if (program.path.empty()) {
    fmt::print(stderr, "lockstep: {}\n", program.problem);
    return program.exit_code;
  }
  const OriginalProcess original = set_up_process(options);
  Preparation ready = prepare(options, program, original);
  Keeper keeper = start_keeper(ready.plan);
  return Launcher(options, std::move(ready), std::move(keeper)).run();
}

}  // namespace lockstep::control

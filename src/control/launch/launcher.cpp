#include "control/launch/launcher.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>
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
#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>

#include "base/diagnosis.h"
#include "base/environment.h"
#include "base/log.h"
#include "control/launch/hosts_state.h"
#include "control/launch/job_socket.h"
#include "control/launch/judge.h"
#include "control/launch/keeper.h"
#include "control/launch/keeper_link.h"
#include "control/launch/meeting.h"
#include "control/launch/meeting_point.h"
#include "control/launch/output.h"
#include "control/launch/preparation.h"
#include "control/launch/process_table.h"
#include "control/launch/program.h"

namespace lockstep::control {
namespace {

using Clock = std::chrono::steady_clock;
using boost::asio::posix::stream_descriptor;

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

// The effects on one host: it passes events to the judge and carries its orders out. It decides nothing itself,
// because only decisions without effects can be tested in every order of events.
//
// One thread runs all of it. It waits in the io_context only, so that a slow terminal or a stopped worker never delays
// a signal.
class Launcher {
 public:
  Launcher(boost::asio::io_context& context, const RunOptions& options, Meeting& meeting,
           std::unique_ptr<Judge> judge, Preparation ready, Keeper keeper);

  JobEnd run();

 private:
  void wait_for_signals();
  void take_signal(int signal);
  void take_event(KeeperEvent event);
  void wait_for_losses();
  void take_losses();
  void obey(const JobState::Orders& orders);
  void open_socket();
  JobAnswer answer(const JobRequest& request);
  void on_keeper_gone();
  void finish();
  void conclude();
  void note(const std::string& line);
  std::chrono::seconds patience() const;

  boost::asio::io_context& context_;
  const RunOptions& options_;
  Meeting& meeting_;
  std::unique_ptr<Judge> judge_;
  KeeperLink keeper_;
  MeetingPoint workers_;
  std::optional<JobSocket> socket_;
  stream_descriptor losses_;
  Output output_;
  ClosingWords closing_;
  stream_descriptor signals_;
  std::optional<NodeVerdict> verdict_;
};

Launcher::Launcher(boost::asio::io_context& context, const RunOptions& options, Meeting& meeting,
                   std::unique_ptr<Judge> judge, Preparation ready, Keeper keeper)
    : context_(context),
      options_(options),
      meeting_(meeting),
      judge_(std::move(judge)),
      keeper_(context_, std::move(keeper)),
      workers_(context_, options, meeting, std::move(ready.news), *judge_),
      losses_(context_, ready.losses.launcher.release()),
      output_(context_, ready.plan, ready.prefix, std::move(ready.logs)),
      closing_(options, meeting.map),
      signals_(context_, signal_descriptor()) {
  keeper_.when_event = [this](const KeeperEvent& event) { take_event(event); };
  keeper_.when_gone = [this] { on_keeper_gone(); };
  keeper_.when_stuck = [this](int worker, pid_t pid) {
    note(fmt::format(
        "lockstep: the kernel does not end process {} of rank {}, which was killed; the "
        "others go on without it",
        pid, meeting_.map.first_rank() + worker));
  };
  output_.when_closed = [this](int error) { judge_->on_output_closed(error); };
  output_.takes_line = [this](int worker, std::string_view line) {
    return judge_->on_line(worker, line);
  };
  judge_->when_orders = [this](const JobState::Orders& orders) { obey(orders); };
  judge_->when_far_event = [this](const KeeperEvent& event) { workers_.take(event); };
  judge_->when_newcomers = [this](int count) { workers_.set_newcomers(count); };
  judge_->may_have = [this](int workers) { return workers_.objection(workers); };
  judge_->when_host = [this](const HostMap& map) {
    meeting_.map = map;
    workers_.set_map(map);
  };
  judge_->when_note = [this](const std::string& line) { note(line); };
  judge_->when_verdict = [this](const NodeVerdict& verdict) {
    verdict_ = verdict;
    finish();
  };
  if (meeting.lifeline) meeting.lifeline->when_signal = [this](int signal) { take_signal(signal); };
}

// Another terminal of the user can ask for this job.
void Launcher::open_socket() {
  JobFacts facts;
  if (!judge_->tell_facts(facts)) return;
  const std::int64_t since = std::time(nullptr);
  socket_.emplace(context_, [this, since](const JobRequest& request) {
    JobAnswer said = answer(request);
    judge_->tell_facts(said.facts);
    said.facts.program = fmt::format("{}", fmt::join(options_.command, " "));
    said.facts.since_s = since;
    return said;
  });
  if (options_.most_workers && !socket_->id().empty()) {
    note(
        fmt::format("lockstep: job {} begins with {} worker{} of {} to {}; `lockstep resize {} N` "
                    "changes that",
                    socket_->id(), options_.workers, options_.workers == 1 ? "" : "s", facts.least,
                    facts.most, socket_->id()));
  }
}

JobAnswer Launcher::answer(const JobRequest& request) {
  JobAnswer reply;
  if (verdict_ && request.kind != JobRequest::Kind::kDescribe) {
    reply.refusal = "it has ended";
  } else if (request.kind == JobRequest::Kind::kStop) {
    take_signal(SIGTERM);
    reply.said = "is told to end, as by SIGTERM";
  } else if (request.kind == JobRequest::Kind::kResize) {
    JobFacts before;
    judge_->tell_facts(before);
    // What the launcher knows comes first: it says more.
    const bool within = request.workers >= before.least && request.workers <= before.most;
    const auto why = within ? workers_.objection(request.workers) : std::nullopt;
    reply.refusal = why ? *why : judge_->on_resize(request.workers);
    reply.said =
        request.workers >= before.workers
            ? fmt::format("is to have {}", request.workers)
            : fmt::format("is to have {}; the others leave between two batches", request.workers);
  }
  return reply;
}

JobEnd Launcher::run() {
  output_.resume_streams();
  open_socket();
  keeper_.start();
  wait_for_signals();
  wait_for_losses();
  context_.restart();  // launchers may have met on it
  context_.run();
  if (options_.when_over && judge_->events() != nullptr) options_.when_over(*judge_->events());
  judge_->part();
  if (!verdict_) return {kSignalBase + SIGINT};
  return {verdict_->code,
          verdict_->cause == static_cast<std::uint8_t>(JobState::Cause::kKeeperLost)};
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
  if (verdict_ && signal == SIGINT) return context_.stop();
  if (signal == SIGTSTP && !judge_->may_pause())
    return note("lockstep: a job on several hosts cannot be stopped: they would take it for lost");
  judge_->on_signal(signal);
  // Ctrl-Z stops the launcher, too, as the shell expects.
  if (signal == SIGTSTP) ::kill(::getpid(), SIGSTOP);
}

void Launcher::take_event(KeeperEvent event) {
  // Workers that came too late to join are none that others have left behind.
  if (event.kind == KeeperEvent::Kind::kSwept)
    closing_.swept(std::max(event.value - workers_.running(), 0));
  // First: what a worker said before it ended has arrived by now.
  if (event.kind == KeeperEvent::Kind::kAllReported) take_losses();
  if (event.rank >= 0) event.rank += meeting_.map.first_rank();
  judge_->on_event(event);
  workers_.take(event);  // after that: the next generation may form at once
}

void Launcher::wait_for_losses() {
  losses_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
    if (error) return;
    take_losses();
    wait_for_losses();
  });
}

void Launcher::take_losses() {
  while (const auto loss = take_loss(losses_.native_handle())) judge_->on_loss(*loss);
}

void Launcher::obey(const JobState::Orders& orders) {
  if (keeper_.gone()) return;
  const int first = meeting_.map.first_rank();
  const auto to_worker = [&](KeeperOrder::Kind kind, const std::vector<int>& ranks) {
    for (const int rank : ranks) {
      if (meeting_.map.here(rank)) keeper_.send({kind, rank - first});
    }
  };
  for (const auto& one : orders.left) {
    if (meeting_.map.here(one.end.rank)) output_.end_lines(one.end.rank - first);
  }
  if (orders.places) {
    // Of several hosts each has the places with which it began.
    if (meeting_.map.nodes() == 1) keeper_.send({KeeperOrder::Kind::kSize, *orders.places});
    workers_.resize(*orders.places);
  }
  if (!orders.dismiss.empty()) workers_.dismiss(orders.dismiss);
  to_worker(KeeperOrder::Kind::kKill, orders.kill);
  to_worker(KeeperOrder::Kind::kStart, orders.start);
  for (const int signal : orders.forward) keeper_.send({KeeperOrder::Kind::kSignal, signal});
  if (orders.release) keeper_.release();
}

// Processes that the keeper could not end are now our children, because the launcher is a subreaper, too.
void Launcher::on_keeper_gone() {
  const int status = keeper_.reap();
  closing_.not_ended(end_descendants(Deadline::after(kOwnSweepLimit)).left);
  judge_->on_keeper_gone(status);
}

// Nothing of the job is left, on any host.
void Launcher::finish() {
  workers_.close();
  output_.drain(patience(), [this] {
    judge_->on_all_read(*verdict_);
    for (const auto& line : closing_.failures(*verdict_, output_)) output_.note(line);
    if (!options_.quiet) {
      for (const auto& line : closing_.notes(*verdict_)) output_.note(line);
    }
    output_.flush(patience(), [this] { conclude(); });
  });
}

void Launcher::conclude() {
  // Asked here, because when_closed has not been called yet for a write that failed just now.
  const bool good = verdict_->cause == static_cast<std::uint8_t>(JobState::Cause::kNone);
  if (const auto lost = output_.lost(); good && !lost.empty()) {
    verdict_->cause = static_cast<std::uint8_t>(JobState::Cause::kOutputClosed);
    verdict_->code = output_closed_code(lost.front().error);
  }
  for (const auto& line : ClosingWords::lost_output(*verdict_, output_)) output_.note(line);
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
  return judge_->ending() ? kPatienceWhenEnding : kPatience;
}

}  // namespace

JobEnd run_prepared(boost::asio::io_context& context, const RunOptions& options, Meeting& meeting,
                    std::unique_ptr<Judge> judge, Preparation ready) {
  Keeper keeper = start_keeper(ready.plan);
  return Launcher(context, options, meeting, std::move(judge), std::move(ready), std::move(keeper))
      .run();
}

namespace {

JobEnd run_once(RunOptions& options, const Program& program,
                std::optional<OriginalProcess>& original) {
  boost::asio::io_context context(1);
  Meeting meeting;
  try {
    meet(context, options, program, meeting);
    if (!original) original = set_up_process(options, meeting.map);
    Preparation ready =
        prepare(options, program, *original, meeting.map, meeting.start, meeting.secret);
    if (meeting.host) meeting.host->tell(meeting.start);
    return run_prepared(context, options, meeting,
                        meeting.make_judge(context, options, program.path), std::move(ready));
  } catch (const CannotBegin& reason) {
    if (!reason.why.empty()) fmt::print(stderr, "lockstep: {}\n", reason.why);
    return {reason.code};
  } catch (const BadInput& error) {
    meeting.give_up({error.what(), kUsage});
    throw;
  } catch (const std::exception& error) {
    meeting.give_up({base::diagnosis(error)});
    throw;
  }
}

}  // namespace

// A keeper that is killed takes its workers with it, and the memory that they left.
int run_job(RunOptions options) {
  if (options.nodes.lifeline) {
    fmt::print("{}\n", kBegun);
    std::fflush(stdout);
  }
  check(options);
  base::set_log_name("launcher");
  const Program program =
      find_program(options.command.front(), base::environment("PATH").value_or("/usr/bin:/bin"));
  const bool on_one_host = one_host(options.nodes) && !options.nodes.lifeline;
  int restarts = elastic(options) && on_one_host ? options.max_restarts.value_or(kMaxRestarts) : 0;
  std::optional<OriginalProcess> original;
  while (true) {
    const JobEnd end = run_once(options, program, original);
    if (end.keeper_lost && restarts-- > 0) {
      if (!options.quiet)
        fmt::print(stderr, "lockstep: the job begins again, from the checkpoint if there is one\n");
      options.began_before = true;
      continue;
    }
    return options.nodes.lifeline ? code_for_coordinator(end.code) : end.code;
  }
}

}  // namespace lockstep::control

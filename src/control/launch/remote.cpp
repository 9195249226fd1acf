#include "control/launch/remote.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>
#include <signal.h>
#include <unistd.h>

#include <utility>  // Boost 1.74's Asio uses std::exchange and does not include this

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "base/environment.h"
#include "base/hash.h"
#include "base/log.h"
#include "control/launch/judge.h"
#include "control/launch/launcher.h"
#include "control/launch/meeting.h"
#include "control/launch/preparation.h"
#include "control/rendezvous/secret.h"
#include "control/rendezvous/sockets.h"

namespace lockstep::control {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kHeartbeat{1};  // of the lifelines; see Lifeline

// Below the ports that kernels give to outgoing connections, and at random, so that two jobs do not meet.
constexpr int kFirstPort = 20'000;
constexpr int kLastPort = 32'000;

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// "me@node0" → "node0"
std::string host_in(const std::string& name) {
  return name.substr(name.find('@') + 1);
}

std::string meeting_point(const std::vector<HostSpec>& hosts) {
  const std::string host = host_in(hosts.front().name);
  const int port = random_port(kFirstPort, kLastPort);
  const bool bare_v6 = host.find(':') != std::string::npos && host.front() != '[';
  return bare_v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

// The judge of the coordinator: HostsState, and the lifelines.
class HostsJudge final : public Judge {
 public:
  HostsJudge(boost::asio::io_context& context, std::vector<HostSpec> hosts, HostsRules rules,
             std::vector<base::Fd> lifelines)
      : state_(std::move(hosts), std::move(rules), Clock::now()),
        lifelines_(std::move(lifelines)),
        deadline_(context),
        heartbeat_(context) {
    beat();
    arm_deadline();
  }

  void on_event(const KeeperEvent& event) override;
  void on_loss(const Loss&) override {}
  // The launcher of the first host tells the user.
  void on_signal(int signal) override { obey(state_.on_signal(signal, Clock::now())); }
  void on_output_closed(int error) override { obey(state_.on_output_closed(error, Clock::now())); }
  bool on_line(int host, std::string_view line) override;
  void on_keeper_gone(int wait_status) override;
  void on_all_read(NodeVerdict& verdict) override {
    if (state_.released()) verdict = state_.verdict();
  }
  bool ending() const override { return state_.ending(); }

 private:
  void obey(const HostsState::Orders& orders);
  void arm_deadline();
  static void send(const base::Fd& lifeline, char byte);
  void beat();

  HostsState state_;
  std::vector<base::Fd> lifelines_;
  boost::asio::steady_timer deadline_;
  boost::asio::steady_timer heartbeat_;
  std::optional<int> not_started_;  // errno
};

void HostsJudge::on_event(const KeeperEvent& event) {
  if (event.kind == KeeperEvent::Kind::kNotStarted) not_started_ = event.value;
  if (event.kind != KeeperEvent::Kind::kEnded) return;
  WorkerEnd end = worker_end(event.rank, event.value);
  if (not_started_) end = {event.rank, WorkerEnd::How::kNotStarted, *not_started_};
  obey(state_.on_end(end_of_shell(end), Clock::now()));
}

// The first of these lines is the launcher's. A login script may have left a line unfinished in front of it.
bool HostsJudge::on_line(int host, std::string_view line) {
  return line.ends_with(kBegun) && state_.on_begun(host);
}

void HostsJudge::on_keeper_gone(int wait_status) {
  NodeVerdict verdict = state_.verdict();
  if (!state_.released()) {
    verdict.code = kSignalBase + SIGKILL;
    verdict.cause = static_cast<std::uint8_t>(JobState::Cause::kKeeperLost);
    verdict.what = fmt::format("the launcher's keeper process {}; everything was ended",
                               describe(worker_end(0, wait_status)));
  }
  lifelines_.clear();
  when_verdict(verdict);
}

void HostsJudge::obey(const HostsState::Orders& orders) {
  // To node 0 alone, which passes it on: two of them would be a second Ctrl-C.
  if (orders.signal != 0 && !lifelines_.empty())
    send(lifelines_.front(), static_cast<char>(orders.signal));
  if (orders.hang_up) lifelines_.clear();
  if (orders.release) when_orders({.forward = {}, .release = true});
  arm_deadline();
}

void HostsJudge::arm_deadline() {
  if (!state_.deadline()) {
    deadline_.cancel();
    return;
  }
  deadline_.expires_at(*state_.deadline());
  deadline_.async_wait([this](const boost::system::error_code& error) {
    if (!error) obey(state_.on_time(Clock::now()));
  });
}

// A host that does not read is lost, and its remote shell will say so.
void HostsJudge::send(const base::Fd& lifeline, char byte) {
  while (::write(lifeline.get(), &byte, 1) < 0 && errno == EINTR) {
  }
}

void HostsJudge::beat() {
  heartbeat_.expires_after(kHeartbeat);
  heartbeat_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    for (const auto& lifeline : lifelines_) send(lifeline, 0);
    beat();
  });
}

Program remote_shell(const std::vector<std::string>& words) {
  if (words.empty()) throw BadInput("--ssh wants a command, such as --ssh \"ssh -p 2222\"");
  Program program =
      find_program(words.front(), base::environment("PATH").value_or("/usr/bin:/bin"));
  if (program.path.empty()) {
    throw BadInput(fmt::format(
        "--hosts needs a remote shell: {}; install openssh-client, or name another with "
        "--ssh",
        program.problem));
  }
  return program;
}

Preparation prepare_shells(const RunOptions& options, const RemoteWords& words,
                           const std::vector<HostSpec>& hosts, const OriginalProcess& original) {
  const auto shell = words_of(options.hosts.shell);
  Preparation ready;
  ready.prefix = [](int, bool) { return std::string(); };  // lines have their prefix already
  ready.losses = make_loss_channel();
  KeeperPlan& plan = ready.plan;
  plan.program = remote_shell(shell).path;
  plan.arguments = [=](int node) {
    std::vector<std::string> all = shell;
    all.push_back(hosts[static_cast<std::size_t>(node)].name);
    all.push_back(remote_command(options, words, hosts, node));
    return all;
  };
  plan.environment = [](int, const WorkerStart&) {
    std::vector<std::string> strings;
    for (char** text = environ; *text != nullptr; ++text) strings.emplace_back(*text);
    return strings;
  };
  plan.open_files = original.open_files;
  plan.signal_mask = original.signal_mask;
  plan.workers = static_cast<int>(hosts.size());
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    plan.inputs.push_back(base::make_pipe());
    plan.outputs.push_back(base::make_pipe());
    plan.outputs.push_back(base::make_pipe());
  }
  return ready;
}

// What every host would refuse is refused once, here.
void check_here(RunOptions options) {
  if (!options.nodes.rendezvous.empty()) parse_address(options.nodes.rendezvous);
  options.nodes = {};
  options.workers = 1;
  check(options);
}

HostsRules hosts_rules(const RunOptions& options) {
  HostsRules rules{.grace = options.grace, .elastic = elastic(options)};
  if (options.timeout_s) rules.to_begin = std::chrono::seconds(*options.timeout_s);
  if (options.hosts.shell != kRemoteShell)
    rules.shell = fmt::format("{}", fmt::join(words_of(options.hosts.shell), " "));
  return rules;
}

// Each lifeline holds the secret before anybody reads it.
std::vector<base::Fd> take_lifelines(KeeperPlan& plan) {
  const std::string secret = base::to_hex(make_secret()) + "\n";
  std::vector<base::Fd> lifelines;
  for (auto& pipe : plan.inputs) {
    base::set_nonblocking(pipe.write.get());
    base::write_all(pipe.write.get(), secret, Deadline::after(std::chrono::seconds(1)));
    lifelines.push_back(std::move(pipe.write));
  }
  return lifelines;
}

// What was exported here does not reach other hosts; node 0 passes faults on to all.
void add_exported_faults(const RunOptions& options, std::vector<std::string>& words) {
  const auto faults = base::environment("LOCKSTEP_FAULTS");
  if (!options.faults.empty() || !faults || faults->empty()) return;
  words.insert(words.end(), {"--faults", *faults});
  const auto seed = base::environment("LOCKSTEP_FAULT_SEED");
  if (!options.fault_seed && seed) words.insert(words.end(), {"--fault-seed", *seed});
}

}  // namespace

std::string shell_word(const std::string& text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

std::string remote_command(const RunOptions& options, const RemoteWords& words,
                           const std::vector<HostSpec>& hosts, int node) {
  const std::string& path = options.hosts.lockstep;
  std::vector<std::string> all = {path.empty() ? own_program() : path};
  all.insert(all.end(), words.before.begin(), words.before.end());
  add_exported_faults(options, all);
  const int workers = hosts[static_cast<std::size_t>(node)].workers;
  all.insert(all.end(), {"--nodes", std::to_string(hosts.size()), "--node-rank",
                         std::to_string(node), "--rendezvous", options.nodes.rendezvous,
                         "--lifeline", "--workers", std::to_string(workers)});
  all.insert(all.end(), words.after.begin(), words.after.end());
  std::string line =
      fmt::format("cd {} && exec", shell_word(std::filesystem::current_path().string()));
  for (const auto& word : all) line += " " + shell_word(word);
  return line;
}

int run_on_hosts(const RunOptions& given, const RemoteWords& words) {
  RunOptions options = given;
  base::set_log_name("launcher");
  const auto hosts = parse_hosts(options.hosts.list, options.workers);
  check_here(options);
  if (options.nodes.rendezvous.empty()) options.nodes.rendezvous = meeting_point(hosts);
  options.workers = static_cast<int>(hosts.size());
  options.log_dir.clear();
  boost::asio::io_context context(1);
  Meeting meeting;
  meeting.map = {0, {{"", static_cast<std::uint32_t>(hosts.size())}}};
  remote_shell(words_of(options.hosts.shell));
  const OriginalProcess original = set_up_process(options, meeting.map);
  Preparation ready = prepare_shells(options, words, hosts, original);
  auto judge = std::make_unique<HostsJudge>(context, hosts, hosts_rules(options),
                                            take_lifelines(ready.plan));
  return run_prepared(context, options, meeting, std::move(judge), std::move(ready)).code;
}

}  // namespace lockstep::control

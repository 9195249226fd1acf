#include "control/launch/meeting.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "base/environment.h"
#include "base/log.h"
#include "control/launch/preparation.h"
#include "control/rendezvous/secret.h"

namespace lockstep::control {
namespace {

constexpr std::chrono::seconds kDefaultTimeout{300};  // join()'s
constexpr std::chrono::seconds kTimeForSecret{30};
constexpr std::chrono::seconds kMostSilence{10};  // of a lifeline
constexpr std::chrono::seconds kTimeToTell{10};   // a problem to the other launchers

std::string this_host() {
  char name[256] = "?";
  ::gethostname(name, sizeof name - 1);
  return name;
}

NodeJoin introduction(const RunOptions& options, const Program& program) {
  NodeJoin join;
  join.node = static_cast<std::uint32_t>(options.nodes.rank);
  join.nodes = options.nodes.join.empty() ? static_cast<std::uint32_t>(options.nodes.nodes) : 0;
  join.workers = static_cast<std::uint32_t>(options.workers);
  join.build = LOCKSTEP_VERSION;
  const std::string& path = options.command.front();
  join.job = options.settle
                 ? options.command_name
                 : fmt::format("{} {}", options.command_name, path.substr(path.rfind('/') + 1));
  if (elastic(options)) join.job += " with --max-restarts";
  join.host = this_host();
  join.pid = static_cast<std::uint32_t>(::getpid());
  join.problem = program.problem;
  join.code = program.exit_code;
  join.faults = faults_of(options);
  return join;
}

void show(const RunOptions& options, const std::string& line) {
  if (!options.quiet) fmt::print(stderr, "{}\n", line);
}

// The choices of node 0 for all nodes.
void settle(RunOptions& options, const HostMap& map, NodeStart& start) {
  if (!options.settle) return;
  options.settle(options, map.world());
  start.words.assign(options.command.begin() + 1, options.command.end());
  for (const auto& [name, value] : as_variables(options))
    start.variables.push_back(fmt::format("{}={}", name, value));
}

// Faults on purpose that node 0 was given are for the workers of all nodes.
void share_faults(const RunOptions& options, NodeStart& start) {
  const std::string faults = faults_of(options);
  if (faults.empty()) return;
  start.variables.push_back("LOCKSTEP_FAULTS=" + faults);
  for (const char* name : {"LOCKSTEP_FAULT_SEED", "LOCKSTEP_FAULT_START"}) {
    std::string value = base::environment(name).value_or("");
    for (const auto& [its_name, its_value] : as_variables(options)) {
      if (its_name == name) value = its_value;
    }
    if (!value.empty()) start.variables.push_back(fmt::format("{}={}", name, value));
  }
}

void take_choices(RunOptions& options, const NodeStart& start) {
  if (options.settle) {
    options.command.resize(1);
    options.command.insert(options.command.end(), start.words.begin(), start.words.end());
    options.variables.clear();
  }
  for (const auto& text : start.variables) {
    const auto equals = text.find('=');
    options.variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
}

void warn_of_loopback(const Listener& listener, const std::string& asked) {
  const std::string& host = listener.address.host;
  if (asked == host || !(host.starts_with("127.") || host == "::1") || asked == "localhost") return;
  base::log(base::LogLevel::kWarn,
            "{} stands for {} here, which other hosts cannot reach; set LOCKSTEP_INTERFACE to the "
            "interface between the hosts",
            asked, host);
}

void host_meeting(boost::asio::io_context& context, RunOptions& options, const NodeJoin& join,
                  const std::string& secret, Deadline deadline, Meeting& meeting) {
  const Address where = parse_address(options.nodes.rendezvous);
  const std::string interface_name = interface_of(options);
  Listener listener = listen_tcp(interface_name.empty() ? where.host : interface_name, where.port);
  warn_of_loopback(listener, where.host);
  meeting.host = std::make_unique<NodeHost>(context, std::move(listener), secret, join);
  meeting.map = meeting.host->meet(deadline, [&](const std::string& line) { show(options, line); });
  if (const int least = options.min_workers.value_or(kMinWorkers); least > meeting.map.world()) {
    throw BadInput(fmt::format("--min-workers {} is not possible with {} workers on {} hosts",
                               least, meeting.map.world(), meeting.map.nodes()));
  }
  meeting.start = make_start(options, meeting.map, meeting.listener);
  settle(options, meeting.map, meeting.start);
  share_faults(options, meeting.start);
}

void attend_meeting(boost::asio::io_context& context, RunOptions& options, const NodeJoin& join,
                    const std::string& secret, Deadline deadline, Meeting& meeting) {
  const bool late = !options.nodes.join.empty();
  const Address where = parse_address(late ? options.nodes.join : options.nodes.rendezvous);
  meeting.guest = std::make_unique<NodeGuest>(context, where, secret, join);
  meeting.start =
      meeting.guest->meet(deadline, [&](const std::string& line) { show(options, line); });
  const int last = static_cast<int>(meeting.start.shares.size()) - 1;
  meeting.map = {late ? last : options.nodes.rank, meeting.start.shares};
  take_choices(options, meeting.start);
}

void hold(boost::asio::io_context& context, RunOptions& options, const NodeJoin& join,
          const std::string& secret, Deadline deadline, Meeting& meeting) {
  if (options.nodes.rank == 0 && options.nodes.join.empty()) {
    host_meeting(context, options, join, secret, deadline, meeting);
  } else {
    attend_meeting(context, options, join, secret, deadline, meeting);
  }
}

// This launcher cannot take part. It says so at once, and stays a moment so that the others hear of it.
[[noreturn]] void tell_problem(boost::asio::io_context& context, RunOptions& options,
                               const NodeJoin& join, const std::string& secret, Meeting& meeting) {
  fmt::print(stderr, "lockstep: {}\n", join.problem);
  options.quiet = true;
  try {
    hold(context, options, join, secret, Deadline::after(kTimeToTell), meeting);
  } catch (const CannotBegin&) {  // as it had to
  }
  throw CannotBegin{"", join.code};
}

}  // namespace

Lifeline::Lifeline(boost::asio::io_context& context) : input_(context), silence_(context) {
  const Deadline deadline = Deadline::after(kTimeForSecret);
  // Byte by byte, because what follows the line is for read().
  while (true) {
    const std::string byte = base::read_exactly(STDIN_FILENO, 1, deadline);
    if (byte == "\n") break;
    if (byte.empty() || secret_.size() == kMostSecretBytes)
      throw BadInput(
          "--lifeline: no secret came on standard input; --hosts sends it, so perhaps a login "
          "script "
          "on this host has read it: such scripts must not read standard input");
    secret_ += byte;
  }
  if (secret_.size() < kLeastSecretBytes)
    throw BadInput(fmt::format("--lifeline: the secret has less than {} bytes", kLeastSecretBytes));
  const int copy = ::dup(STDIN_FILENO);
  base::set_nonblocking(copy);
  input_.assign(copy);
  wait();
  expect_more();
}

void Lifeline::wait() {
  input_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                    [this](const boost::system::error_code& error) {
                      if (!error) read();
                    });
}

void Lifeline::read() {
  char bytes[64];
  const ssize_t got = ::read(input_.native_handle(), bytes, sizeof bytes);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return wait();
  if (got <= 0) return hang_up();
  wait();
  expect_more();
  for (ssize_t i = 0; i < got; ++i) {
    if (bytes[i] > 0 && bytes[i] < NSIG) when_signal(bytes[i]);
  }
}

void Lifeline::expect_more() {
  silence_.expires_after(kMostSilence);
  silence_.async_wait([this](const boost::system::error_code& error) {
    if (!error) hang_up();
  });
}

void Lifeline::hang_up() {
  input_.close();
  silence_.cancel();
  when_signal(SIGHUP);
}

std::unique_ptr<Judge> Meeting::make_judge(boost::asio::io_context& context,
                                           const RunOptions& options,
                                           const std::string& program) const {
  if (guest) return std::make_unique<FarJudge>(context, options, map, *guest);
  return std::make_unique<OwnJudge>(context, options, map, program, host.get(), start);
}

void Meeting::give_up(const CannotBegin& reason) const {
  if (host) host->refuse({fmt::format("node 0 ({}): {}", this_host(), reason.why), reason.code});
  if (guest) guest->give_up(reason.why);
}

void meet(boost::asio::io_context& context, RunOptions& options, const Program& program,
          Meeting& meeting) {
  std::string secret;
  if (options.nodes.lifeline) {
    meeting.lifeline = std::make_unique<Lifeline>(context);
    meeting.lifeline->when_signal = [](int signal) {
      throw CannotBegin{"", kSignalBase + signal};  // who told us knows why
    };
    secret = meeting.lifeline->secret();
  }
  if (one_host(options.nodes)) {
    if (program.path.empty()) throw CannotBegin{program.problem, program.exit_code};
    meeting.map = {0, {{this_host(), static_cast<std::uint32_t>(places(options))}}};
    meeting.start = make_start(options, meeting.map, meeting.listener);
    meeting.secret = make_secret();
    return settle(options, meeting.map, meeting.start);
  }
  if (secret.empty()) secret = read_secret_file(options.nodes.secret_file);
  const NodeJoin join = introduction(options, program);
  const std::chrono::seconds asked{options.timeout_s.value_or(kDefaultTimeout.count())};
  if (!join.problem.empty() && !options.nodes.join.empty())
    throw CannotBegin{join.problem, join.code};  // the job that runs need not know
  if (!join.problem.empty()) return tell_problem(context, options, join, secret, meeting);
  hold(context, options, join, secret, Deadline::after(asked), meeting);
  meeting.secret = generation_secret(secret, meeting.start.name, "workers");
}

}  // namespace lockstep::control

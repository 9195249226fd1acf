#include "control/launch/judge.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "control/launch/preparation.h"

namespace lockstep::control {
namespace {

using Clock = std::chrono::steady_clock;

// Those that go on need the cores to do so. A program that loads its libraries would take them, and the bandwidth, too.
constexpr std::chrono::milliseconds kBeforeRestart{200};

EndRules end_rules(const RunOptions& options, const HostMap& map) {
  EndRules rules;
  rules.grace = options.grace;
  rules.explained_codes = options.explained_codes;
  rules.stopped_code = options.stopped_code;
  if (elastic(options))
    rules.elastic = {.min_workers = options.min_workers.value_or(kMinWorkers),
                     .max_restarts = options.max_restarts.value_or(kMaxRestarts),
                     .most_workers = map.world(),
                     .pause = kBeforeRestart};
  const std::vector<int> signals = signals_to_forward();
  const bool on_terminal = ::isatty(STDOUT_FILENO) == 1 || ::isatty(STDERR_FILENO) == 1;
  rules.hangs_up =
      on_terminal && std::find(signals.begin(), signals.end(), SIGHUP) != signals.end();
  return rules;
}

bool tells_to_end(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

}  // namespace

// ---- OwnJudge -------------------------------------------------------------------------------------------------------

OwnJudge::OwnJudge(boost::asio::io_context& context, const RunOptions& options, const HostMap& map,
                   std::string program, NodeHost* nodes, NodeStart start)
    : options_(options),
      map_(map),
      nodes_(nodes),
      start_(std::move(start)),
      state_(map.nodes() == 1 ? options.workers : map.world(), end_rules(options, map)),
      report_(map, std::move(program)),
      events_(map_, Clock::now()),
      deadline_(context) {
  for (int node = 0; node < map.nodes(); ++node) by_number_[node].runs = true;
  if (nodes_ == nullptr) return;
  nodes_->when_event = [this](int node, const NodeEvent& event) { take_node_event(node, event); };
  nodes_->when_lost = [this](int node, const std::string& why) { lose(node, why); };
  nodes_->when_join = [this](int node, const NodeJoin& join) { return admit(node, join); };
}

// The places of a host that joins are new ones, also if it was lost before: a process of the lost one that still runs
// must not be taken for one of them.
NodeHost::Admission OwnJudge::admit(int node, const NodeJoin& join) {
  if (std::string why = state_.objection_to_host(); !why.empty())
    return {{}, fmt::format("the job cannot be joined: {}", why)};
  if (!may_have(1)) {
    if (const auto why = may_have(state_.live() + static_cast<int>(join.workers)))
      return {{},
              fmt::format("the job has {} workers and cannot have {} more: {}", state_.live(),
                          join.workers, *why)};
  } else {
    return {};  // it is not known yet
  }
  map_.shares.push_back({join.host, join.workers});
  start_.shares = map_.shares;
  report_.set_map(map_);
  by_number_[node].runs = true;
  state_.on_host_joined(map_.ranks_of(node));
  when_host(map_);
  when_note(fmt::format("lockstep: {} joins, with {} worker{}", map_.name_of(node), join.workers,
                        join.workers == 1 ? "" : "s"));
  return {start_, ""};
}

void OwnJudge::take_node_event(int node, const NodeEvent& event) {
  switch (event.kind) {
    case NodeEvent::Kind::kKeeperEvent:
      return take_far(node, {static_cast<KeeperEvent::Kind>(event.keeper_kind), event.rank,
                             event.pid, event.value});
    case NodeEvent::Kind::kLoss:
      return on_loss({event.rank, event.value});
    case NodeEvent::Kind::kSignal:
      return take_signal(node, event.value);
    case NodeEvent::Kind::kOutputClosed:
      return on_output_closed(event.value);
    case NodeEvent::Kind::kKeeperGone:
      return take_end(node, event.value);
    case NodeEvent::Kind::kExpelled:
      if (map_.is_rank(event.rank) && map_.node_of(event.rank) == node)
        on_expelled(event.rank, event.value / 1000.0);
      return;
  }
}

void OwnJudge::take_far(int node, const KeeperEvent& event) {
  if (event.rank >= 0 && (!map_.is_rank(event.rank) || map_.node_of(event.rank) != node)) return;
  take_event(node, event);
  when_far_event(event);
}

void OwnJudge::take_event(int node, const KeeperEvent& event) {
  report_.add(event);
  switch (event.kind) {
    case KeeperEvent::Kind::kNotStarted:
      if (event.pid == 0)
        by_number_[node].together.push_back({event.rank, WorkerEnd::How::kNotStarted, event.value});
      break;
    case KeeperEvent::Kind::kEnded:
      if (const int error = report_.not_started(event.rank)) {
        by_number_[node].together.push_back({event.rank, WorkerEnd::How::kNotStarted, error});
      } else {
        by_number_[node].together.push_back(worker_end(event.rank, event.value));
        by_number_[node].together.back().pid = event.pid;
      }
      break;
    case KeeperEvent::Kind::kAllReported:
      take_ends(node);
      break;
    case KeeperEvent::Kind::kStarted:
      state_.on_started(event.rank, Clock::now());
      if (map_.is_rank(event.rank)) events_.on_started(event.rank, Clock::now());
      break;
    case KeeperEvent::Kind::kSwept:
      break;
  }
}

void OwnJudge::take_ends(int node) {
  const auto orders = state_.on_ends(std::exchange(by_number_[node].together, {}), Clock::now());
  // Before the orders: they continue a stopped worker.
  if (const auto lost = state_.lost(); lost && map_.here(*lost)) report_.look_at(*lost);
  obey(orders);
  part_if_empty(node);
}

void OwnJudge::on_loss(const Loss& loss) {
  if (!map_.is_rank(loss.rank)) return;
  if (loss.whom == Loss::kGoodbye) return state_.on_goodbye(loss.rank);
  if (loss.whom == Loss::kClosed) return obey(state_.on_closed());
  if (loss.whom <= Loss::kFirstFault) return report_.fault(Loss::kFirstFault - loss.whom);
  state_.on_loss(loss.rank, map_.is_rank(loss.whom) ? std::optional(loss.whom) : std::nullopt);
}

// A scheduler takes another host away: its workers leave between two batches, so that the others repeat nothing. False if
// these cannot go on without them.
bool OwnJudge::dismiss_host(int node) {
  if (nodes_ == nullptr || !by_number_[node].runs) return false;
  if (state_.finishing() && !ending()) {  // all of it is about to end, and well
    when_note(
        fmt::format("lockstep: {} got SIGTERM; the job has reached its end, and ends by itself",
                    map_.name_of(node)));
    return true;
  }
  if (may_have(1)) return false;
  if (by_number_[node].leaves) return !ending();  // told twice
  const auto orders = state_.on_host_leaves(map_.ranks_of(node), Clock::now());
  if (!orders) return false;
  by_number_[node].leaves = true;
  when_note(
      fmt::format("lockstep: {} got SIGTERM and leaves, between two batches", map_.name_of(node)));
  obey(*orders);
  part_if_empty(node);
  return true;
}

// If a host leaves and its workers have ended, so may its launcher.
void OwnJudge::part_if_empty(int node) {
  const auto ranks = map_.ranks_of(node);
  if (!by_number_[node].leaves || !std::all_of(ranks.begin(), ranks.end(), [this](int rank) {
        return state_.end_of(rank).has_value();
      }))
    return;
  by_number_[node].runs = by_number_[node].leaves = false;
  const int others = state_.going_on();
  const std::string text = fmt::format("{} has left; {} go{} on", map_.name_of(node),
                                       others == 1 ? "1 worker" : fmt::format("{} workers", others),
                                       others == 1 ? "es" : "");
  when_note("lockstep: " + text);
  events_.on_host_gone(node, JobEvents::HostIs::kLeaving, text, Clock::now());
  nodes_->tell(node, NodeVerdict{.code = kSignalBase + SIGTERM,
                                 .cause = static_cast<std::uint8_t>(JobState::Cause::kSignal),
                                 .cut_short = true,
                                 .what = "this host has left the job, which goes on."});
  conclude_if_over();
}

void OwnJudge::take_signal(int node, int signal) {
  if (signal == SIGTERM && node != map_.node && dismiss_host(node)) return;
  const bool first = state_.cause() == JobState::Cause::kNone;
  obey(state_.on_signal(signal, Clock::now()));
  if (!first || state_.cause() != JobState::Cause::kSignal) return;
  const std::string from = node == map_.node ? "" : " from " + map_.name_of(node);
  when_note(fmt::format(
      "lockstep: passed SIG{} on{}; workers have {:g} s to end, Ctrl-C kills them at once",
      sigabbrev_np(signal), from, static_cast<double>(options_.grace.count()) / 1000));
}

void OwnJudge::on_output_closed(int error) {
  obey(state_.on_output_closed(error, Clock::now()));
}

void OwnJudge::on_formed(std::uint64_t generation, const std::vector<int>& ranks, bool again) {
  state_.on_formed(ranks);
  events_.on_formed(generation, ranks, Clock::now());
  if (std::exchange(generation_, generation) == 0) return;
  const std::string who =
      ranks.size() == 1 ? "1 worker trains" : fmt::format("{} workers train", ranks.size());
  when_note(again
                ? fmt::format("lockstep: nobody is left of those that trained: {} again, from the "
                              "memory that they left, or from the checkpoint (generation {})",
                              who, generation)
                : fmt::format("lockstep: {} from here on (generation {})", who, generation));
}

void OwnJudge::on_newcomers(int count) {
  if (nodes_ != nullptr) nodes_->tell(NodeOrders{.newcomers = count});
}

void OwnJudge::on_expelled(int rank, double waited_s) {
  report_.expel(waited_s);
  events_.on_expelled(rank, waited_s, Clock::now());
  obey(state_.on_expelled(rank));
}

void OwnJudge::on_dismissed(int rank) {
  obey(state_.on_dismissed(rank));
}

std::string OwnJudge::on_resize(int workers) {
  const auto before = state_.wanted();
  auto resized = state_.on_resize(workers, Clock::now());
  if (!resized.refusal.empty()) return resized.refusal;
  const std::string text = fmt::format("the job is to have {} worker{}; before: {}", workers,
                                       workers == 1 ? "" : "s", *before);
  when_note("lockstep: " + text);
  events_.on_resized(workers, text, Clock::now());
  obey(resized.orders);
  return "";
}

bool OwnJudge::tell_facts(JobFacts& facts) const {
  facts.workers = state_.live();
  facts.wanted = state_.wanted().value_or(facts.workers);
  if (const auto most = state_.most()) {
    facts.least = options_.min_workers.value_or(kMinWorkers);
    facts.most = *most;
  }
  facts.generation = generation_;
  return true;
}

void OwnJudge::on_all_read(NodeVerdict& /*verdict*/) {
  // Those of a job that was cut short may have been for later.
  if (const std::string line = report_.unstruck(faults_of(options_)); !ending() && !line.empty())
    when_note("lockstep: " + line);
  const int left = state_.left();
  if (left == 0) return;
  const int replaced = state_.replaced();
  const auto were = [](int count) { return count == 1 ? "was" : "were"; };
  std::string line = fmt::format("lockstep: {} worker{} left", left, left == 1 ? "" : "s");
  if (replaced == left) {
    line += fmt::format(" and {} replaced", were(left));
  } else if (replaced > 0) {
    line += fmt::format("; {} {} replaced", replaced, were(replaced));
  }
  when_note(line);
}

void OwnJudge::take_end(int node, int wait_status) {
  if (elastic(options_) && node != map_.node && !state_.released())
    return lose(node, "its keeper process " + describe(worker_end(0, wait_status)));
  if (!state_.released()) report_.keeper_lost(node, wait_status);
  by_number_[node].runs = false;
  obey(state_.on_keeper_lost());
  conclude_if_over();
}

void OwnJudge::lose(int node, const std::string& why) {
  if (!std::exchange(by_number_[node].runs, false)) return;  // it had ended
  const auto orders = state_.on_host_lost(map_.ranks_of(node), Clock::now());
  if (ending()) {
    report_.host_lost(node, why);
  } else {
    const int others = state_.going_on();
    const std::string rest = others == 0   ? "the job has reached its end"
                             : others == 1 ? "1 worker goes on"
                                           : fmt::format("{} workers go on", others);
    const std::string text = fmt::format("lost {}: {}; {}", map_.name_of(node), why, rest);
    when_note("lockstep: " + text);
    events_.on_host_gone(node, JobEvents::HostIs::kLost, text, Clock::now());
    for (const int rank : map_.ranks_of(node))
      when_far_event({KeeperEvent::Kind::kEnded, rank, 0, SIGKILL});
    when_far_event({KeeperEvent::Kind::kAllReported});
  }
  obey(orders);
  conclude_if_over();
}

void OwnJudge::obey(const JobState::Orders& orders) {
  const bool any =
      !orders.forward.empty() || orders.release || !orders.start.empty() || !orders.kill.empty();
  if (nodes_ != nullptr && any) {
    nodes_->tell(NodeOrders{.signals = {orders.forward.begin(), orders.forward.end()},
                            .release = orders.release,
                            .start = {orders.start.begin(), orders.start.end()},
                            .kill = {orders.kill.begin(), orders.kill.end()}});
  }
  for (const int rank : orders.start) report_.restart(rank);
  if (ending()) events_.on_ending(Clock::now());
  when_orders(orders);
  for (const auto& one : orders.left) {
    const std::string text =
        describe(one, options_.max_restarts.value_or(kMaxRestarts), report_.waited_s());
    when_note("lockstep: " + text);
    events_.on_left(one, text, Clock::now());
  }
  arm_deadline();
}

void OwnJudge::arm_deadline() {
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

void OwnJudge::conclude_if_over() {
  const bool any = std::any_of(by_number_.begin(), by_number_.end(),
                               [](const auto& one) { return one.second.runs; });
  if (any || std::exchange(concluded_, true)) return;
  deadline_.cancel();
  const NodeVerdict verdict = report_.verdict(state_);
  note_end(verdict);
  if (nodes_ != nullptr) nodes_->tell(verdict);
  when_verdict(verdict);
}

// A worker may have told the reason itself.
void OwnJudge::note_end(const NodeVerdict& verdict) {
  std::optional<int> worker;
  std::string text = verdict.what;
  if (state_.cause() == JobState::Cause::kSignal) {
    text = fmt::format("the job was told to end; exit code {}", verdict.code);
  } else if (state_.cause() == JobState::Cause::kOutputClosed) {
    text = "the output could not be written any more";
  } else if (state_.failure()) {
    worker = state_.failure()->cause.rank;
    if (text.empty()) text = fmt::format("rank {} {}", *worker, describe(state_.failure()->cause));
  }
  events_.finish(worker, text);
}

void OwnJudge::part() {
  if (nodes_ != nullptr) nodes_->part();
}

// ---- FarJudge -------------------------------------------------------------------------------------------------------

FarJudge::FarJudge(boost::asio::io_context& context, const RunOptions& options, const HostMap& map,
                   NodeGuest& node_0)
    : map_(map), node_0_(node_0), elastic_(elastic(options)), deadline_(context) {
  const auto here = map.ranks_of(map.node);
  live_ = {here.begin(), here.end()};
  node_0_.when_orders = [this](const NodeOrders& orders) { obey(orders); };
  node_0_.when_verdict = [this](const NodeVerdict& verdict) {
    if (verdict_) return;  // this host has left
    verdict_ = verdict;
    conclude_if_over();
  };
  node_0_.when_lost = [this](const std::string& why) { lose_node_0(why); };
}

void FarJudge::on_event(const KeeperEvent& event) {
  node_0_.tell({NodeEvent::Kind::kKeeperEvent, static_cast<std::int32_t>(event.kind), event.rank,
                event.pid, event.value});
  if (event.kind == KeeperEvent::Kind::kStarted) live_.insert(event.rank);
  if (event.kind == KeeperEvent::Kind::kEnded) live_.erase(event.rank);
  if (verdict_ && live_.empty()) obey({{}, true});
}

void FarJudge::on_loss(const Loss& loss) {
  node_0_.tell({.kind = NodeEvent::Kind::kLoss, .rank = loss.rank, .value = loss.whom});
}

void FarJudge::on_signal(int signal) {
  node_0_.tell({.kind = NodeEvent::Kind::kSignal, .value = signal});
}

void FarJudge::on_output_closed(int error) {
  node_0_.tell({.kind = NodeEvent::Kind::kOutputClosed, .value = error});
}

void FarJudge::on_expelled(int rank, double waited_s) {
  node_0_.tell({.kind = NodeEvent::Kind::kExpelled,
                .rank = rank,
                .value = static_cast<std::int32_t>(std::min(1000 * waited_s, 1e9))});
}

// With elastic rules the job goes on without this host, if nobody had ended it.
void FarJudge::on_keeper_gone(int wait_status) {
  gone_ = true;
  if (verdict_) return conclude_if_over();
  node_0_.tell({.kind = NodeEvent::Kind::kKeeperGone, .value = wait_status});
  if (!elastic_ || ending_ || released_) return;
  ending_ = true;
  verdict_.emplace();
  verdict_->code = kSignalBase + SIGKILL;
  verdict_->cause = static_cast<std::uint8_t>(JobState::Cause::kKeeperLost);
  verdict_->cut_short = true;
  verdict_->what =
      fmt::format("the launcher's keeper process on {} {}; the workers here were ended.",
                  map_.name_of(map_.node), describe(worker_end(0, wait_status)));
  conclude_if_over();
}

// Node 0 still has a connection to a launcher that has left before the others.
void FarJudge::part() {
  if (verdict_) node_0_.give_up(verdict_->what);
}

void FarJudge::obey(const NodeOrders& orders) {
  ending_ = ending_ || std::any_of(orders.signals.begin(), orders.signals.end(), tells_to_end);
  released_ = released_ || orders.release;
  if (orders.newcomers >= 0) when_newcomers(orders.newcomers);
  when_orders({.forward = {orders.signals.begin(), orders.signals.end()},
               .release = orders.release,
               .start = {orders.start.begin(), orders.start.end()},
               .kill = {orders.kill.begin(), orders.kill.end()}});
}

// With elastic rules the workers of node 0 may live on, as when only its launcher was stopped for a while. A worker that
// is told to end passes that on to those it trains with, so the ones here are killed.
void FarJudge::lose_node_0(const std::string& why) {
  if (verdict_) return;  // this host has left
  verdict_.emplace();
  verdict_->code = 1;
  verdict_->cause = static_cast<std::uint8_t>(JobState::Cause::kHostLost);
  verdict_->cut_short = true;
  verdict_->what = fmt::format("lost {}: {}; the workers here were ended.", map_.name_of(0), why);
  if (elastic_ && !ending_ && !gone_) {
    ending_ = true;
    return obey({{}, true});
  }
  conclude_if_over();
}

// A verdict that comes while workers live here is a sign that node 0 could not go on.
void FarJudge::conclude_if_over() {
  if (gone_) {
    deadline_.cancel();
    return when_verdict(*verdict_);
  }
  obey({{SIGTERM, SIGCONT}, live_.empty()});
  deadline_.expires_after(EndRules{}.after_failure);
  deadline_.async_wait([this](const boost::system::error_code& error) {
    if (!error) obey({{}, true});
  });
}

}  // namespace lockstep::control

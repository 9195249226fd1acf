#include "control/launch/nodes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <optional>
#include <set>

namespace lockstep::control {
namespace {

using boost::system::error_code;
using std::chrono::milliseconds;

constexpr milliseconds kBeat{1000};
constexpr milliseconds kTick{250};
constexpr milliseconds kSilence{3000};
constexpr milliseconds kTimeToProve{5000};
constexpr milliseconds kFarewell{2000};
constexpr milliseconds kOneAttempt{1000};
constexpr milliseconds kPause{100};
constexpr std::chrono::seconds kFirstNote{3};  // until the user is told what is being waited for

std::chrono::steady_clock::time_point now() {
  return std::chrono::steady_clock::now();
}

std::string silence_text() {
  return fmt::format(
      "nothing was heard from it for {} s: its host is stopped or gone, or the network "
      "to it is cut",
      kSilence.count() / 1000);
}

constexpr const char* kOtherSecret =
    "tried to join with another secret; give every host the same --secret-file";
constexpr std::size_t kMostOthers = 8;  // strangers must not fill the output

constexpr const char* kNotYet =
    "its hosts have not met, or its workers have not ended a first batch, or they cannot meet "
    "between two: only the loop of a Job or a Trainer can";

constexpr const char* kClosed = "its launcher ended without a word";

// Runs handlers until `done`, or the deadline. False at the deadline.
bool run_until(boost::asio::io_context& context, Deadline deadline,
               const std::function<bool()>& done) {
  while (!done()) {
    if (deadline.expired()) return false;
    context.restart();
    context.run_one_until(std::min(deadline.when(), now() + kTick));
  }
  return true;
}

// Calls `tick` four times a second, as long as its owner lives.
class Ticker {
 public:
  explicit Ticker(boost::asio::io_context& context) : timer_(context) {}

  template <typename Owner>
  void start(std::weak_ptr<Owner> owner) {
    timer_.expires_after(kTick);
    timer_.async_wait([this, owner](error_code error) {
      const auto alive = owner.lock();
      if (error || !alive) return;
      alive->tick();
      start(owner);
    });
  }
  // Whether it is time for a beat.
  bool beat() {
    ticks_ = (ticks_ + 1) % (kBeat / kTick);
    return ticks_ == 0;
  }

 private:
  boost::asio::steady_timer timer_;
  std::int64_t ticks_ = 0;
};

}  // namespace

// ---- Node 0 ---------------------------------------------------------------------------------------------------------

class NodeHost::State : public std::enable_shared_from_this<NodeHost::State> {
 public:
  State(NodeHost& owner, boost::asio::io_context& context, Listener listener,
        const std::string& secret, NodeJoin node_0)
      : context_(context),
        owner_(&owner),
        door_(std::make_shared<Door>(context, std::move(listener), DoorOptions{secret})),
        roster_(std::move(node_0)),
        ticker_(context) {}

  void start() {
    door_->when_message = [this](ConnectionId from, const Message& message) {
      return take(from, message);
    };
    door_->when_gone = [this](ConnectionId id) {
      late_.erase(id);
      if (const auto node = roster_.node_of(id)) lose(*node, kClosed);
    };
    door_->when_stranger = [this](const std::string& who, const Departure& departure) {
      return meeting_ && departure.ending == Ending::kNoSecret && turn_away(who);
    };
    door_->start();
    ticker_.start(weak_from_this());
  }
  void shut_down() {
    owner_ = nullptr;
    door_->shut_down();
  }

  HostMap meet(Deadline deadline, const Note& note);
  void refuse(const CannotBegin& reason);
  void tell(const Message& message) {
    for (const ConnectionId to : roster_.connections()) door_->send(to, message);
  }
  void tell(int node, const Message& message) {
    for (const ConnectionId to : roster_.connections()) {
      if (roster_.node_of(to) == node) door_->send(to, message);
    }
  }
  void part();
  void tick();

 private:
  bool take(ConnectionId from, const Message& message);
  void join(ConnectionId from, const NodeJoin& join);
  void take_in_late();
  bool decide_on_late(ConnectionId from, const NodeJoin& join);
  void lose(int node, const std::string& why);
  bool turn_away(const std::string& who);
  std::string late_text() const;

  boost::asio::io_context& context_;
  NodeHost* owner_;
  std::shared_ptr<Door> door_;
  NodeRoster roster_;
  Ticker ticker_;
  bool meeting_ = true;
  Note note_;                              // to the user, while they meet
  std::map<ConnectionId, NodeJoin> late_;  // launchers that wait to join the job that runs
  std::set<std::string> others_;           // addresses that came with another secret
  std::optional<CannotBegin> reason_;      // why the job cannot begin
};

bool NodeHost::State::take(ConnectionId from, const Message& message) {
  if (const auto* first = std::get_if<NodeJoin>(&message)) {
    const bool late = first->nodes == 0;
    if (roster_.node_of(from) || late_.contains(from) || (first->node == 0 && !late)) return false;
    if (!late) {
      join(from, *first);
    } else {
      late_.emplace(from, *first);
      take_in_late();
    }
    return true;
  }
  const auto node = roster_.node_of(from);
  roster_.heard(from, now());
  if (std::holds_alternative<Beat>(message)) return true;
  if (const auto* give_up = std::get_if<GiveUp>(&message)) {
    if (node) lose(*node, give_up->why);
    if (meeting_) return false;
    door_->send(from, NodeVerdict{});  // when it has read that, it closes the connection
    return true;
  }
  const auto* event = std::get_if<NodeEvent>(&message);
  if (event == nullptr || meeting_) return false;
  if (node && owner_ != nullptr) owner_->when_event(*node, *event);
  return true;
}

void NodeHost::State::join(ConnectionId from, const NodeJoin& join) {
  const auto reason = roster_.add(from, join, now());
  if (!reason) return;
  // It may not be in the roster, so it is told apart from the others.
  if (!roster_.node_of(from))
    door_->send(from, NodeVerdict{.code = reason->code, .what = reason->why});
  if (!reason->newcomer_only && !reason_) reason_ = reason;
}

void NodeHost::State::take_in_late() {
  if (meeting_ || owner_ == nullptr || !owner_->when_join) return;
  std::erase_if(late_, [this](const auto& one) { return decide_on_late(one.first, one.second); });
}

// False if it has to wait.
bool NodeHost::State::decide_on_late(ConnectionId from, const NodeJoin& join) {
  std::optional<CannotBegin> reason = roster_.objection_to_late(join);
  NodeHost::Admission admission;
  if (!reason) admission = owner_->when_join(roster_.map().nodes(), join);
  if (!admission.refusal.empty()) reason = CannotBegin{admission.refusal};
  if (reason) {
    door_->send(from, NodeVerdict{.code = reason->code, .what = reason->why});
    return true;
  }
  if (!admission.start) return false;
  roster_.take_in(from, join, now());
  door_->send(from, *admission.start);
  return true;
}

void NodeHost::State::lose(int node, const std::string& why) {
  const std::string name = roster_.name_of(node);
  roster_.remove(node);
  if (meeting_) {
    if (!reason_) reason_ = CannotBegin{fmt::format("{} left before the job began: {}", name, why)};
  } else if (owner_ != nullptr) {
    owner_->when_lost(node, why);
  }
}

void NodeHost::State::tick() {
  if (ticker_.beat()) tell(Beat{});
  for (const int node : roster_.silent(now(), kSilence)) lose(node, silence_text());
  take_in_late();
}

// It may be one of our nodes, or anybody: it is named, and does not end the job. False if too many are named.
bool NodeHost::State::turn_away(const std::string& who) {
  const std::string address = who.substr(0, who.find(' '));
  if (others_.contains(address)) return true;
  if (others_.size() == kMostOthers) return false;
  others_.insert(address);
  if (note_) note_(fmt::format("lockstep: somebody at {} {}", address, kOtherSecret));
  return true;
}

std::string NodeHost::State::late_text() const {
  const std::string text =
      fmt::format("node {} did not come to {} in time", fmt::join(roster_.missing(), ", "),
                  to_string(door_->address()));
  if (!others_.empty())
    return fmt::format("{}; somebody at {} {}", text, fmt::join(others_, ", "), kOtherSecret);
  return text +
         "; start the same command there with its --node-rank, or allow more time with --timeout";
}

HostMap NodeHost::State::meet(Deadline deadline, const Note& note) {
  note_ = note;
  const auto done = [this] { return reason_ || roster_.whole(); };
  const bool soon = run_until(context_, earlier(deadline, Deadline::after(kFirstNote)), done);
  if (!soon) {
    note(fmt::format("lockstep: waiting at {} for node {}", to_string(door_->address()),
                     fmt::join(roster_.missing(), ", ")));
  }
  if (!soon && !run_until(context_, deadline, done)) reason_ = CannotBegin{late_text()};
  note_ = nullptr;
  if (reason_) {
    const CannotBegin reason = *reason_;
    refuse(reason);
    throw reason;
  }
  meeting_ = false;
  roster_.begin();
  return roster_.map();
}

void NodeHost::State::refuse(const CannotBegin& reason) {
  meeting_ = true;
  tell(NodeVerdict{.code = reason.code, .what = reason.why});
  for (const auto& [from, join] : late_)
    door_->send(from, NodeVerdict{.code = reason.code, .what = reason.why});
  part();
}

// They close the connection when they have read it.
void NodeHost::State::part() {
  run_until(context_, Deadline::after(kFarewell), [this] { return roster_.connections().empty(); });
}

NodeHost::NodeHost(boost::asio::io_context& context, Listener listener, const std::string& secret,
                   NodeJoin node_0)
    : state_(
          std::make_shared<State>(*this, context, std::move(listener), secret, std::move(node_0))) {
  state_->start();
}
NodeHost::~NodeHost() {
  state_->shut_down();
}
HostMap NodeHost::meet(Deadline deadline, const Note& note) {
  return state_->meet(deadline, note);
}
void NodeHost::refuse(const CannotBegin& reason) {
  state_->refuse(reason);
}
void NodeHost::tell(const Message& message) {
  state_->tell(message);
}
void NodeHost::tell(int node, const Message& message) {
  state_->tell(node, message);
}
void NodeHost::part() {
  state_->part();
}

// ---- The other nodes ------------------------------------------------------------------------------------------------

class NodeGuest::State : public ConnectionOwner,
                         public std::enable_shared_from_this<NodeGuest::State> {
 public:
  State(NodeGuest& owner, boost::asio::io_context& context, Address node_0, std::string secret,
        NodeJoin join)
      : context_(context),
        owner_(&owner),
        node_0_(std::move(node_0)),
        secret_(std::move(secret)),
        join_(std::move(join)),
        ticker_(context) {}

  void shut_down() {
    owner_ = nullptr;
    if (link_) link_->abandon();
  }
  NodeStart meet(Deadline deadline, const Note& note);
  void tell(const NodeEvent& event) {
    if (link_) link_->send(event);
  }
  // Node 0 answers or closes the connection when it has read it.
  void give_up(const std::string& why) {
    owner_ = nullptr;
    if (link_) link_->send(GiveUp{why});
    run_until(context_, Deadline::after(kFarewell), [this] { return !link_; });
  }
  void tick();

  bool on_message(ConnectionId from, const Message& message) override;
  void on_end(ConnectionId connection, const Departure& departure) override;

 private:
  void attempt(Deadline deadline);
  std::optional<std::string> final_problem(const Departure& departure) const;
  std::string waiting_text() const;
  std::string late_text() const;
  void lose(const std::string& why);
  void when_met(std::function<void(NodeGuest&)> tell_owner);

  boost::asio::io_context& context_;
  NodeGuest* owner_;
  Address node_0_;
  std::string secret_;
  NodeJoin join_;
  std::shared_ptr<Connection> link_;
  std::chrono::steady_clock::time_point heard_{};
  Ticker ticker_;
  bool meeting_ = true;
  std::optional<NodeStart> start_;
  std::optional<CannotBegin> reason_;
  std::string problem_ = "nobody listens there";
};

void NodeGuest::State::attempt(Deadline deadline) {
  base::Fd fd = try_connect(node_0_, earlier(deadline, Deadline::after(kOneAttempt)), problem_);
  if (!fd) return;
  link_ = std::make_shared<Connection>(
      context_, 0, std::move(fd), Session(Handshake(Role::kWorker, secret_)), weak_from_this());
  heard_ = {};
  link_->start(kTimeToProve);
  link_->send(join_);
}

NodeStart NodeGuest::State::meet(Deadline deadline, const Note& note) {
  const Deadline note_at = Deadline::after(kFirstNote);
  const auto done = [this] { return start_ || reason_; };
  bool noted = false;
  ticker_.start(weak_from_this());
  while (!done() && !deadline.expired()) {
    if (!link_) attempt(deadline);
    const auto pause = link_ ? kTick : kPause;
    run_until(context_, earlier(deadline, Deadline::after(pause)), done);
    if (!done() && note_at.expired() && !std::exchange(noted, true)) {
      note(link_ ? waiting_text()
                 : fmt::format("lockstep: waiting for node 0 at {}: {}", to_string(node_0_),
                               problem_));
    }
  }
  meeting_ = false;
  if (start_) return *start_;
  if (reason_) throw *reason_;
  throw CannotBegin{late_text()};
}

std::string NodeGuest::State::waiting_text() const {
  if (join_.nodes > 0) return "lockstep: waiting for the other nodes";
  return fmt::format("lockstep: waiting for the job at {}: {}", to_string(node_0_), kNotYet);
}

std::string NodeGuest::State::late_text() const {
  const std::string where = to_string(node_0_);
  if (join_.nodes > 0) {
    return fmt::format(
        "could not meet node 0 at {}: {}; start the same command there with --node-rank 0, and see "
        "whether the address is right",
        where, problem_);
  }
  if (link_) return fmt::format("the job at {} did not take this host in: {}", where, kNotYet);
  return fmt::format(
      "no job can be joined at {}: {}; give --join the address of --rendezvous of that job", where,
      problem_);
}

bool NodeGuest::State::on_message(ConnectionId, const Message& message) {
  link_->trust();
  heard_ = now();
  if (std::holds_alternative<Beat>(message)) return true;
  const auto* verdict = std::get_if<NodeVerdict>(&message);
  if (!start_) {
    if (const auto* start = std::get_if<NodeStart>(&message)) {
      start_ = *start;
    } else if (verdict != nullptr) {
      reason_ = CannotBegin{verdict->what, verdict->code};
      link_->abandon();
    } else {
      return false;
    }
    return true;
  }
  if (verdict == nullptr && !std::holds_alternative<NodeOrders>(message)) return false;
  if (verdict != nullptr) {
    link_->abandon();  // node 0 waits for that
    link_.reset();
  }
  when_met([message](NodeGuest& owner) {
    if (const auto* orders = std::get_if<NodeOrders>(&message)) owner.when_orders(*orders);
    if (const auto* end = std::get_if<NodeVerdict>(&message)) owner.when_verdict(*end);
  });
  return true;
}

// Orders may come together with the start, while this launcher still is in meet(). They wait until the io_context runs
// again, because only then is there somebody to obey.
void NodeGuest::State::when_met(std::function<void(NodeGuest&)> tell_owner) {
  if (!meeting_) {
    if (owner_ != nullptr) tell_owner(*owner_);
    return;
  }
  boost::asio::post(context_, [self = shared_from_this(), tell_owner = std::move(tell_owner)] {
    if (self->owner_ != nullptr) tell_owner(*self->owner_);
  });
}

// What another attempt cannot mend.
std::optional<std::string> NodeGuest::State::final_problem(const Departure& departure) const {
  const std::string where = to_string(node_0_);
  switch (departure.ending) {
    case Ending::kOtherVersion:
      return fmt::format("node 0 at {} has another version of Lockstep; install one on every host",
                         where);
    case Ending::kRefusedSecret:
      return fmt::format("node 0 at {} has another secret; give every host the same --secret-file",
                         where);
    case Ending::kNoSecret:
      return fmt::format(
          "the process that answers at {} does not know the secret; see what listens there, or "
          "choose "
          "another port in --rendezvous",
          where);
    case Ending::kNone:
    case Ending::kNotOurs:
    case Ending::kBrokenFrame:
      break;
  }
  if (!departure.proven) return std::nullopt;
  return fmt::format("node 0 at {} left before the job began; its own output says why", where);
}

void NodeGuest::State::on_end(ConnectionId, const Departure& departure) {
  link_.reset();
  if (start_) return lose(kClosed);
  if (reason_) return;
  problem_ = fmt::format("the process that answers {}", departure.why);
  if (auto why = final_problem(departure)) {
    const bool wrong_option = departure.ending != Ending::kNone;
    reason_ = CannotBegin{std::move(*why), wrong_option ? kUsage : 1};
  }
}

void NodeGuest::State::lose(const std::string& why) {
  if (link_) link_->abandon();
  link_.reset();
  if (!start_) {
    if (!reason_)
      reason_ = CannotBegin{fmt::format("node 0 was lost before the job began: {}", why)};
  } else {
    when_met([why](NodeGuest& owner) { owner.when_lost(why); });
  }
}

void NodeGuest::State::tick() {
  if (!link_) return;
  if (heard_.time_since_epoch().count() != 0 && now() - heard_ > kSilence)
    return lose(silence_text());
  if (ticker_.beat()) link_->send(Beat{});
}

NodeGuest::NodeGuest(boost::asio::io_context& context, Address node_0, std::string secret,
                     NodeJoin join)
    : state_(std::make_shared<State>(*this, context, std::move(node_0), std::move(secret),
                                     std::move(join))) {}
NodeGuest::~NodeGuest() {
  state_->shut_down();
}
NodeStart NodeGuest::meet(Deadline deadline, const Note& note) {
  return state_->meet(deadline, note);
}
void NodeGuest::tell(const NodeEvent& event) {
  state_->tell(event);
}
void NodeGuest::give_up(const std::string& why) {
  state_->give_up(why);
}

}  // namespace lockstep::control

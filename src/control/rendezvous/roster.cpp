#include "control/rendezvous/roster.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "base/hash.h"

namespace lockstep::control {
namespace {

constexpr std::size_t kNameBytes = 16;
constexpr std::size_t kSaltBytes = 32;
constexpr std::size_t kMostRanksInText = 8;

std::string process_text(const Join& join) {
  return fmt::format("pid {} on {}", join.pid, join.host);
}

double seconds(std::chrono::milliseconds span) {
  return static_cast<double>(span.count()) / 1000;
}

std::chrono::milliseconds ms(std::uint32_t count) {
  return std::chrono::milliseconds(count);
}

}  // namespace

std::string ranks_text(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  const std::size_t shown = ranks.size() <= kMostRanksInText ? ranks.size() - 1 : kMostRanksInText;
  std::string list = std::to_string(ranks[0]);
  for (std::size_t i = 1; i < shown; ++i) list += fmt::format(", {}", ranks[i]);
  if (shown + 1 == ranks.size()) return fmt::format("ranks {} and {}", list, ranks.back());
  return fmt::format("ranks {} and {} more", list, ranks.size() - shown);
}

Generation::Generation(std::uint64_t number, std::vector<int> places, GenerationPast past)
    : number_(number),
      places_(std::move(places)),
      past_(past),
      size_(static_cast<int>(places_.size())),
      name_{base::to_hex(base::random_bytes(kNameBytes)), base::random_bytes(kSaltBytes)} {}

void Generation::join(ConnectionId from, const Join& join, TimePoint now, Answers& out) {
  if (static_cast<int>(join.rank) < size_) informed_.insert(join.rank);
  if (!failure_) {
    if (auto why = objection(join)) {
      std::vector<int> ranks{static_cast<int>(join.rank)};
      fail(ErrorKind::kMismatch, std::move(*why), std::move(ranks), out);
    }
  }
  if (failure_) return tell(from, join.id, out);
  members_[join.rank] = {join};
  ranks_[from] = join.rank;
  waiters_.emplace(now + ms(join.wait_ms),
                   Waiter{from, join.id, Wait::kJoin, ms(join.timeout_ms), {}});
  if (!whole()) return;
  for (const auto& [until, waiter] : waiters_) {
    out.push_back({waiter.connection,
                   Welcome{waiter.id, number_, name_.name, name_.salt, ranks_.at(waiter.connection),
                           places_, static_cast<std::uint32_t>(past_.survivors), past_.restarted}});
  }
  waiters_.clear();
}

// What of this worker does not fit the others, and how to mend it; nothing if all fits.
std::optional<std::string> Generation::objection(const Join& join) const {
  if (static_cast<int>(join.size) != size_) {
    return fmt::format(
        "rank {} was told of {} workers, the rendezvous of {}; start all of them with the same "
        "number",
        join.rank, join.size, size_);
  }
  if (members_.empty()) return std::nullopt;
  if (const auto twin = members_.find(join.rank); twin != members_.end()) {
    return fmt::format(
        "two processes joined as rank {}: {} and {}; start each worker once, and give jobs that "
        "run "
        "at the same time rendezvous of their own",
        join.rank, process_text(twin->second.join), process_text(join));
  }
  const Join& first = members_.begin()->second.join;
  if (join.build != first.build) {
    return fmt::format(
        "rank {} runs Lockstep {}, rank {} runs {}; build every worker from one version", join.rank,
        join.build, first.rank, first.build);
  }
  if (join.engine != first.engine) {
    return fmt::format(
        "rank {} joins with engine {}, rank {} with {}; set the same LOCKSTEP_ENGINE everywhere",
        join.rank, join.engine, first.rank, first.engine);
  }
  return std::nullopt;
}

void Generation::put(ConnectionId from, const Put& put, Answers& out) {
  if (failure_) return tell(from, put.id, out);
  const auto [value, fresh] = values_.emplace(put.key, put.value);
  if (!fresh) {
    out.push_back({from, Failed{put.id,
                                ErrorKind::kMismatch,
                                fmt::format("the key \"{}\" was put twice", put.key),
                                {}}});
    return;
  }
  out.push_back({from, Stored{put.id}});
  std::erase_if(waiters_, [&](const auto& entry) {
    const Waiter& waiter = entry.second;
    if (waiter.what != Wait::kGet || waiter.key != put.key) return false;
    out.push_back({waiter.connection, Value{waiter.id, put.value}});
    return true;
  });
}

void Generation::get(ConnectionId from, const Get& get, TimePoint now, Answers& out) {
  const auto value = values_.find(get.key);
  if (value != values_.end()) {
    out.push_back({from, Value{get.id, value->second}});
  } else if (failure_) {
    tell(from, get.id, out);
  } else {
    waiters_.emplace(now + ms(get.wait_ms),
                     Waiter{from, get.id, Wait::kGet, ms(get.wait_ms), get.key});
  }
}

void Generation::done(ConnectionId from, const Done& done, TimePoint now, Answers& out) {
  if (failure_) return tell(from, done.id, out);
  members_.at(ranks_.at(from)).done = true;
  waiters_.emplace(now + ms(done.wait_ms),
                   Waiter{from, done.id, Wait::kDone, ms(done.wait_ms), {}});
  if (!not_done().empty()) return;
  finished_ = true;
  for (const auto& [until, waiter] : waiters_) {
    out.push_back({waiter.connection, Finished{waiter.id}});
  }
  waiters_.clear();
}

void Generation::give_up(ConnectionId from, const GiveUp& give_up, Answers& out) {
  const Join& join = member_of(from)->join;
  fail(
      ErrorKind::kPeerLost,
      fmt::format("rank {} ({}) could not connect: {}", join.rank, process_text(join), give_up.why),
      {static_cast<int>(join.rank)}, out);
}

void Generation::lost(ConnectionId from, Answers& out) {
  std::erase_if(waiters_, [from](const auto& entry) { return entry.second.connection == from; });
  const Member* member = member_of(from);
  if (member == nullptr) return;
  fail(ErrorKind::kPeerLost,
       fmt::format("rank {} ({}) left before the world was formed; see its output",
                   member->join.rank, process_text(member->join)),
       {static_cast<int>(member->join.rank)}, out);
}

void Generation::tick(TimePoint now, Answers& out) {
  while (!waiters_.empty() && waiters_.begin()->first <= now) {
    const Waiter waiter = std::move(waiters_.begin()->second);
    waiters_.erase(waiters_.begin());
    run_out(waiter, out);
  }
}

std::optional<TimePoint> Generation::next_tick() const {
  if (waiters_.empty()) return std::nullopt;
  return waiters_.begin()->first;
}

// A wait for a key concerns one worker only. If workers are missing, the whole generation fails.
void Generation::run_out(const Waiter& waiter, Answers& out) {
  switch (waiter.what) {
    case Wait::kGet:
      out.push_back(
          {waiter.connection, Failed{waiter.id,
                                     ErrorKind::kTimeout,
                                     fmt::format("no worker put the key \"{}\" within {:g} s",
                                                 waiter.key, seconds(waiter.patience)),
                                     {}}});
      return;
    case Wait::kJoin:
      fail(ErrorKind::kTimeout,
           fmt::format("{} of {} {} not joined after {:g} s; see whether they started, and whether "
                       "they were given the same rendezvous and secret",
                       ranks_text(missing()), size_, missing().size() == 1 ? "has" : "have",
                       seconds(waiter.patience)),
           missing(), out);
      break;
    case Wait::kDone:
      fail(ErrorKind::kTimeout,
           fmt::format("{} did not finish connecting in time; see what they wait for",
                       ranks_text(not_done())),
           not_done(), out);
      break;
  }
  tell(waiter.connection, waiter.id, out);
}

// Those sent away are members no longer: that they go is no failure that others must hear of.
void Generation::close(Answers& out) {
  std::erase_if(waiters_, [this, &out](const auto& entry) {
    const Waiter& waiter = entry.second;
    if (waiter.what != Wait::kJoin) return false;
    out.push_back({waiter.connection, Closing{}});
    const auto rank = ranks_.extract(waiter.connection);
    members_.erase(rank.mapped());
    return true;
  });
}

void Generation::fail(ErrorKind kind, std::string message, std::vector<int> ranks, Answers& out) {
  if (failure_ || finished_) return;
  failure_ = Failed{0, kind, std::move(message), std::move(ranks)};
  for (const auto& [until, waiter] : waiters_) tell(waiter.connection, waiter.id, out);
  waiters_.clear();
}

void Generation::tell(ConnectionId to, std::uint32_t id, Answers& out) const {
  Failed failed = *failure_;
  failed.id = id;
  out.push_back({to, std::move(failed)});
}

const Generation::Member* Generation::member_of(ConnectionId connection) const {
  const auto rank = ranks_.find(connection);
  return rank == ranks_.end() ? nullptr : &members_.at(rank->second);
}

std::vector<int> Generation::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (!members_.contains(static_cast<std::uint32_t>(rank))) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> Generation::not_done() const {
  std::vector<int> ranks;
  for (const auto& [rank, member] : members_) {
    if (!member.done) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

RendezvousRoster::RendezvousRoster(int size, std::optional<MembershipRules> elastic)
    : size_(size), elastic_(std::move(elastic)) {
  for (int place = 0; place < size; ++place) formed_.alive.insert(place);
  formed_.any = elastic_ && elastic_->began_before;
}

bool RendezvousRoster::take(ConnectionId from, const Message& message, TimePoint now,
                            Answers& out) {
  if (const auto* first = std::get_if<Join>(&message)) return join(from, *first, now, out);
  const auto place = places_.find(from);
  if (place == places_.end() || !place->second->serves(from)) return false;
  Generation& generation = *place->second;
  if (const auto* put = std::get_if<Put>(&message)) {
    generation.put(from, *put, out);
  } else if (const auto* get = std::get_if<Get>(&message)) {
    generation.get(from, *get, now, out);
  } else if (const auto* done = std::get_if<Done>(&message)) {
    const bool before = generation.finished();
    generation.done(from, *done, now, out);
    if (elastic_ && generation.finished() && !before) note_formed();
  } else if (const auto* give_up = std::get_if<GiveUp>(&message)) {
    generation.give_up(from, *give_up, out);
  } else {
    return false;
  }
  return true;
}

bool RendezvousRoster::join(ConnectionId from, const Join& join, TimePoint now, Answers& out) {
  if (joined(from) || join.rank >= join.size) return false;
  if (elastic_) {
    join_elastic(from, join, now, out);
    return true;
  }
  const bool next = current_ == nullptr || current_->finished() ||
                    (current_->failed() && current_->knows(join.rank));
  if (closing_ && (next || !current_->failed())) {
    out.push_back({from, Closing{}});
    return true;
  }
  if (next) {
    std::vector<int> all(static_cast<std::size_t>(size_));
    std::iota(all.begin(), all.end(), 0);
    current_ = std::make_shared<Generation>(++last_number_, std::move(all));
  }
  places_[from] = current_;
  current_->join(from, join, now, out);
  return true;
}

// What does not fit the job, or the workers that train.
std::optional<std::string> RendezvousRoster::objection(const Join& join) const {
  if (static_cast<int>(join.size) > size_)
    return fmt::format("rank {} was told of {} workers, the rendezvous of {}", join.rank, join.size,
                       size_);
  for (const auto& [connection, other] : waiting_) {
    if (other.join.rank != join.rank) continue;
    return fmt::format("two processes joined as rank {}: {} and {}", join.rank,
                       process_text(other.join), process_text(join));
  }
  if (formed_.last.empty()) return std::nullopt;
  if (join.build != agreed_[0])
    return fmt::format("{} runs Lockstep {}, the job {}; build every worker from one version",
                       process_text(join), join.build, agreed_[0]);
  if (join.engine != agreed_[1])
    return fmt::format("{} joins with engine {}, the job has {}", process_text(join), join.engine,
                       agreed_[1]);
  return std::nullopt;
}

// A worker that does not fit is sent away, and the job goes on.
void RendezvousRoster::join_elastic(ConnectionId from, const Join& join, TimePoint now,
                                    Answers& out) {
  if (closing_) return out.push_back({from, Closing{}});
  if (auto why = objection(join)) {
    const std::vector<int> ranks{static_cast<int>(join.rank)};
    return out.push_back({from, Failed{join.id, ErrorKind::kMismatch, std::move(*why), ranks}});
  }
  waiting_[from] = {join, now, now + ms(join.wait_ms)};
  form(now, out);
}

void RendezvousRoster::set_alive(std::set<int> places, TimePoint now, Answers& out) {
  formed_.alive = std::move(places);
  if (forming()) {
    for (const int place : current_->places()) {
      if (!formed_.alive.contains(place)) formed_.died.insert(place);
    }
  }
  std::erase_if(formed_.last, [this](int place) { return !formed_.alive.contains(place); });
  std::erase_if(formed_.expelled, [this](int place) { return !formed_.alive.contains(place); });
  form(now, out);
}

void RendezvousRoster::set_wanted(int places, TimePoint now, Answers& out) {
  if (!elastic_) return;
  elastic_->wanted = places;
  form(now, out);
}

void RendezvousRoster::dismiss(const std::vector<int>& places, TimePoint now, Answers& out) {
  if (!elastic_) return;
  elastic_->leaving.insert(places.begin(), places.end());
  form(now, out);
}

// A worker that waits though its process has ended does not count: its connection will end, too.
Membership RendezvousRoster::membership() const {
  Membership now{formed_.alive, formed_.last, {}, formed_.before};
  for (const auto& [connection, one] : waiting_) {
    const int place = static_cast<int>(one.join.rank);
    if (formed_.alive.contains(place)) now.waiting.push_back({place, one.join.in_batch, one.since});
  }
  return now;
}

int RendezvousRoster::newcomers() const {
  if (!elastic_ || formed_.last.empty() || forming()) return 0;
  const Membership now = membership();
  const auto joins = [&](const Candidate& one) {
    return elastic_->wants(one.place) &&
           std::find(now.last.begin(), now.last.end(), one.place) == now.last.end();
  };
  return static_cast<int>(std::count_if(now.waiting.begin(), now.waiting.end(), joins)) +
         static_cast<int>(to_dismiss(now, *elastic_).size());
}

void RendezvousRoster::form(TimePoint now, Answers& out) {
  ask_again_.reset();
  if (!elastic_ || forming()) return;
  std::map<int, ConnectionId> by_place;
  for (const auto& [connection, one] : waiting_)
    by_place[static_cast<int>(one.join.rank)] = connection;
  const MembershipVerdict verdict = next_members(membership(), *elastic_, now);
  ask_again_ = verdict.ask_again;
  end_processes(Event::Kind::kExpelled, verdict.expelled);
  end_processes(Event::Kind::kDismissed, verdict.dismissed);
  if (verdict.forms.empty()) return;
  formed_.died.clear();
  current_ = std::make_shared<Generation>(
      ++last_number_, verdict.forms,
      GenerationPast{verdict.survivors, formed_.any && verdict.survivors == 0});
  for (std::size_t rank = 0; rank < verdict.forms.size(); ++rank) {
    const ConnectionId connection = by_place.at(verdict.forms[rank]);
    Join join = waiting_.extract(connection).mapped().join;
    join.rank = static_cast<std::uint32_t>(rank);
    join.size = static_cast<std::uint32_t>(verdict.forms.size());
    places_[connection] = current_;
    current_->join(connection, join, now, out);
    agreed_[0] = join.build;
    agreed_[1] = join.engine;
  }
}

// Each is told once. Until a process has been ended, set_alive() has it, and nobody goes on.
void RendezvousRoster::end_processes(Event::Kind why, const std::vector<int>& places) {
  std::vector<int> told;
  std::copy_if(places.begin(), places.end(), std::back_inserter(told),
               [this](int place) { return formed_.expelled.insert(place).second; });
  if (!told.empty()) events_.push_back({why, 0, std::move(told)});
}

void RendezvousRoster::note_formed() {
  formed_.any = true;
  formed_.last = current_->places();
  formed_.before = static_cast<int>(formed_.last.size());
  std::erase_if(formed_.last, [this](int place) { return formed_.died.contains(place); });
  if (!formed_.last.empty())
    events_.push_back({Event::Kind::kFormed, current_->number(), formed_.last});
}

void RendezvousRoster::give_up_waiting(TimePoint now, Answers& out) {
  std::erase_if(waiting_, [&](const auto& entry) {
    const auto& [connection, one] = entry;
    if (one.until > now) return false;
    out.push_back(
        {connection, Failed{one.join.id,
                            ErrorKind::kTimeout,
                            fmt::format("no generation took rank {} in within {:g} s; see what the "
                                        "other workers do",
                                        one.join.rank, seconds(ms(one.join.timeout_ms))),
                            {}}});
    return true;
  });
}

void RendezvousRoster::lost(ConnectionId connection, Answers& out) {
  waiting_.erase(connection);
  const auto place = places_.find(connection);
  if (place == places_.end()) return;
  place->second->lost(connection, out);
  places_.erase(place);
}

void RendezvousRoster::tick(TimePoint now, Answers& out) {
  if (current_) current_->tick(now, out);
  give_up_waiting(now, out);
  form(now, out);
}

std::optional<TimePoint> RendezvousRoster::next_tick() const {
  std::optional<TimePoint> next = current_ ? current_->next_tick() : std::nullopt;
  const auto consider = [&](TimePoint time) { next = next ? std::min(*next, time) : time; };
  if (ask_again_) consider(*ask_again_);
  for (const auto& [connection, one] : waiting_) consider(one.until);
  return next;
}

void RendezvousRoster::close(Answers& out) {
  closing_ = true;
  for (const auto& [connection, one] : waiting_) out.push_back({connection, Closing{}});
  waiting_.clear();
  if (current_) current_->close(out);
}

}  // namespace lockstep::control

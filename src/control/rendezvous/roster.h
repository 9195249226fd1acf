// The decisions of the rendezvous, without sockets or clocks: who has joined, what they agree on,
// what they have stored. Every event returns the answers to send.
//
// A generation waits for `size` workers, keeps what they put, and ends when all are done. It fails as
// a whole: if workers disagree, if one leaves or gives up before all are done, or if somebody's wait
// ends while ranks are missing. A rank that has not heard of the failure hears of it when it joins: no
// rank waits for a generation that is over. A rank that has heard of it begins the next generation.
//
// If workers may leave and join (an elastic job), a worker that joins waits until next_members() (membership.h) names it
// for a generation, which forms then from these workers alone. A generation that fails while it forms is only an attempt:
// its workers join again.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "control/rendezvous/membership.h"
#include "control/rendezvous/message.h"

namespace lockstep::control {

using TimePoint = std::chrono::steady_clock::time_point;

// A message that the server is to send.
struct Answer {
  ConnectionId to = 0;
  Message message;
};
using Answers = std::vector<Answer>;

// What a Welcome says of earlier generations.
struct GenerationPast {
  int survivors = 0;
  bool restarted = false;
};

// One generation, from its first worker to its last.
//
// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   none thrown; failures are answers.
// Ownership: values only.
class Generation {
 public:
  // `places` as in Welcome.
  Generation(std::uint64_t number, std::vector<int> places, GenerationPast past = {});

  void join(ConnectionId from, const Join& join, TimePoint now, Answers& out);
  void put(ConnectionId from, const Put& put, Answers& out);
  void get(ConnectionId from, const Get& get, TimePoint now, Answers& out);
  void done(ConnectionId from, const Done& done, TimePoint now, Answers& out);
  void give_up(ConnectionId from, const GiveUp& give_up, Answers& out);
  void lost(ConnectionId from, Answers& out);

  // Ends the waits that are over at `now`. Call it again at next_tick().
  void tick(TimePoint now, Answers& out);
  std::optional<TimePoint> next_tick() const;

  // Sends away the workers that wait for others to join.
  void close(Answers& out);

  bool failed() const { return failure_.has_value(); }
  bool finished() const { return finished_; }
  std::uint64_t number() const { return number_; }
  const std::vector<int>& places() const { return places_; }

  // Whether this is a worker of this generation that was welcomed, and not one that was turned away.
  bool serves(ConnectionId connection) const { return whole() && member_of(connection) != nullptr; }

  // Of a failed generation: whether this rank has joined it, and so has heard of the failure.
  bool knows(std::uint32_t rank) const { return informed_.contains(rank); }
  bool known_to_all() const { return static_cast<int>(informed_.size()) >= size_; }

 private:
  struct Member {
    Join join;
    bool done = false;
  };
  enum class Wait : std::uint8_t { kJoin, kGet, kDone };
  struct Waiter {
    ConnectionId connection = 0;
    std::uint32_t id = 0;
    Wait what = Wait::kJoin;
    std::chrono::milliseconds patience{0};  // for the text of its Timeout
    std::string key;
  };
  using Waiters = std::multimap<TimePoint, Waiter>;  // by the end of their wait

  std::optional<std::string> objection(const Join& join) const;
  void fail(ErrorKind kind, std::string message, std::vector<int> ranks, Answers& out);
  void tell(ConnectionId to, std::uint32_t id, Answers& out) const;
  void run_out(const Waiter& waiter, Answers& out);
  bool whole() const { return static_cast<int>(members_.size()) == size_; }
  const Member* member_of(ConnectionId connection) const;
  std::vector<int> missing() const;
  std::vector<int> not_done() const;

  std::uint64_t number_;
  std::vector<int> places_;
  GenerationPast past_;
  int size_;
  struct Name {
    std::string name;
    std::string salt;
  };
  Name name_;
  std::map<std::uint32_t, Member> members_;
  std::map<ConnectionId, std::uint32_t> ranks_;
  std::map<std::string, std::string, std::less<>> values_;
  Waiters waiters_;
  std::optional<Failed> failure_;
  std::set<std::uint32_t> informed_;
  bool finished_ = false;
};

// All generations of a job, one after the other.
//
// Threads, Blocking, Failure, Ownership: as Generation.
class RendezvousRoster {
 public:
  // `elastic`: workers may leave and join, and `size` is the number of places.
  explicit RendezvousRoster(int size, std::optional<MembershipRules> elastic = {});

  // Takes a worker's message. False if it makes no sense now: drop the connection.
  bool take(ConnectionId from, const Message& message, TimePoint now, Answers& out);
  void lost(ConnectionId connection, Answers& out);
  void tick(TimePoint now, Answers& out);
  std::optional<TimePoint> next_tick() const;

  // From now on workers that want to join are sent away. Workers of a generation that is complete go
  // on, and those of a failed one still hear of the failure.
  void close(Answers& out);

  // The last generation has failed, and not every rank has heard of it.
  bool has_news() const { return current_ && current_->failed() && !current_->known_to_all(); }

  bool joined(ConnectionId connection) const {
    return places_.contains(connection) || waiting_.contains(connection);
  }

  // Only for elastic jobs. The processes of these places run; at first those of all places do.
  void set_alive(std::set<int> places, TimePoint now, Answers& out);
  // The job is to have the places below this number: others leave between two batches.
  void set_wanted(int places, TimePoint now, Answers& out);
  // These are to leave between two batches, because their host does.
  void dismiss(const std::vector<int>& places, TimePoint now, Answers& out);
  // There are more places now. Workers that were started before know of fewer.
  void set_places(int places) { size_ = std::max(size_, places); }
  // Workers for which those that train are to meet between two batches: they wait to join, or are to leave.
  int newcomers() const;
  // What has happened since the last call.
  struct Event {
    enum class Kind : std::uint8_t { kFormed, kExpelled, kDismissed };
    Kind kind = Kind::kFormed;
    std::uint64_t generation = 0;
    std::vector<int> places;
  };
  std::vector<Event> take_events() { return std::exchange(events_, {}); }

 private:
  // A worker of an elastic job that waits for a generation.
  struct Waiting {
    Join join;
    TimePoint since;
    TimePoint until;
  };
  bool join(ConnectionId from, const Join& join, TimePoint now, Answers& out);
  void join_elastic(ConnectionId from, const Join& join, TimePoint now, Answers& out);
  std::optional<std::string> objection(const Join& join) const;
  bool forming() const { return current_ && !current_->finished() && !current_->failed(); }
  void form(TimePoint now, Answers& out);
  Membership membership() const;
  void end_processes(Event::Kind why, const std::vector<int>& places);
  void note_formed();
  void give_up_waiting(TimePoint now, Answers& out);

  int size_;
  std::optional<MembershipRules> elastic_;
  bool closing_ = false;
  std::uint64_t last_number_ = 0;
  std::shared_ptr<Generation> current_;
  std::map<ConnectionId, std::shared_ptr<Generation>> places_;
  // Of elastic jobs.
  std::map<ConnectionId, Waiting> waiting_;
  struct Formed {
    std::set<int> alive;
    std::vector<int> last;   // places of the last generation, without those that have died since
    std::set<int> expelled;  // or dismissed, and not dead yet
    std::set<int> died;  // while the current generation formed: a new process may have the place
    bool any = false;
    int before = 0;  // how many the last generation had
  };
  Formed formed_;
  std::string agreed_[2];  // build and engine of that generation
  std::optional<TimePoint> ask_again_;
  std::vector<Event> events_;
};

// "rank 2", "ranks 2 and 3", "ranks 1, 2 and 5", "ranks 1, 2, 3, 4, 5 and 7 more".
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace lockstep::control

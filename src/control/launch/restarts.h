// How often workers that have died are started again. Pure: no clock and no processes.
//
//   place   a worker's number for its launcher; its replacement has the same
//
// A program that always crashes must end with its own message, not in a loop. So restarts are limited within any 10
// minutes, and a place whose processes die soon after their start waits longer and longer.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lockstep::control {

// Threads:   one caller at a time.
// Blocking:  never; time is an argument.
// Failure:   none.
// Ownership: plain values.
class Restarts {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::minutes kWindow{10};
  static constexpr std::chrono::seconds kSoon{
      10};  // a process that lives longer is no crash at the start
  static constexpr std::chrono::seconds kFirstWait{1};  // doubled each time
  static constexpr std::chrono::seconds kLongestWait{30};

  // `pause`: between a death and the next process, at least.
  explicit Restarts(int most, Clock::duration pause = {}) : most_(most), pause_(pause) {}

  void on_start(int place, Clock::time_point now) { places_[place].started = now; }

  // When the next process of a place may start. Not `left`: none is left before that, because 10 minutes must pass since
  // an earlier one.
  struct Grant {
    Clock::time_point when;
    bool left = true;
    bool again = true;  // it is a restart
  };

  // Its process has died, or could not be started. Nothing if there are never restarts.
  std::optional<Grant> on_end(int place, Clock::time_point now);

  // Starts a process in an empty place. That is no restart.
  void add(int place, Clock::time_point now) { waiting_[place] = {now, true, waits(place)}; }
  void drop(int place) { waiting_.erase(place); }

  // The places to start now; each is returned once.
  std::vector<int> due(Clock::time_point now);

  // When due() has something, if at all.
  std::optional<Clock::time_point> next() const;

  // Places that start soon: those for which no restart is left do not count.
  int waiting() const;
  bool waits(int place) const { return waiting_.contains(place); }
  void drop() { waiting_.clear(); }  // nothing is started any more
  int done() const { return done_; }

 private:
  struct Place {
    std::optional<Clock::time_point> started;
    int deaths = 0;  // soon after the start, in a row
  };

  int most_;
  Clock::duration pause_;
  std::map<int, Place> places_;
  std::map<int, Grant> waiting_;
  std::multiset<Clock::time_point> granted_;
  int done_ = 0;  // restarts
};

// Who has left a job whose workers may leave, how many it is to have, and whether it goes on. It knows places only;
// JobState knows how they ended. The places that the job is to have: a resize adds the lowest that are empty, and takes the
// highest away. Places of a host that was lost or has left stay empty.
//
// Threads, Blocking, Failure, Ownership: as Restarts.
class Departures {
 public:
  using Clock = Restarts::Clock;
  struct Rules {
    int min_workers = 1;
    int max_restarts = 10;    // within 10 minutes
    int most_workers = 0;     // to which the job can be resized; fewer than it begins with: those
    Clock::duration pause{};  // as Restarts
  };
  enum class After : std::uint8_t {
    kReplaced,   // a replacement starts
    kNoRestart,  // the others go on without it: no restart is left
    kFinishing,  // the others go on without it: some have reached the end of the job
    kPastEnd,    // it had reached the end itself, and was not the leader
    kClosed,     // the others go on without it: nobody can join them
    kRefused,    // it could not join the others, which go on
    kResized,    // the job has been given fewer workers
    kHostLeft,   // its host leaves
    kTooFew,     // the job ends
  };
  struct Outcome {
    After after = After::kTooFew;
    Clock::duration wait{};  // until a replacement starts; with kNoRestart zero: never
  };

  // The job begins with so many workers.
  Departures(const Rules& rules, int workers);

  void on_started(int place, Clock::time_point now) { restarts_.on_start(place, now); }
  void on_formed(const std::vector<int>& places);
  void on_expelled(int place) { places_[place].expelled = true; }
  // It has left its world, and only its own work is to be done.
  void on_goodbye(int place) { places_[place].past_end = true; }
  // It is between two batches, and is not to stay: its process will be ended.
  void on_dismissed(int place) { places_[place].dismissed = true; }

  // The members are in a part of the program where nobody can join them. Returns the processes to end: those that wait to
  // join. If no member is left, all places begin again.
  std::vector<int> on_closed();

  // Its process has ended with 0. After that no member is replaced: the newcomer would find nobody to learn from.
  void on_ended_well(int place);

  // Its process has died, or could not be started, and this many others live.
  Outcome on_left(int place, int live, Clock::time_point now);

  // The host of these places is lost, and this many others live. False: those are too few, and the job has not been ended
  // by its leader.
  bool on_host_lost(const std::vector<int>& places, int live);

  // The host of these places is to leave, and this many workers live. The processes to end at once, as on_resize(); nothing
  // if too few would stay, or if nobody can leave.
  std::optional<std::vector<int>> on_host_leaves(const std::vector<int>& places, int live);

  // A host has joined: these places are new, and their processes start. Those that were to leave and have not done so stay.
  void on_host_joined(const std::vector<int>& places);

  // A newcomer has ended with a code of its own: it would do so again.
  Outcome on_refused(int place, int live);

  // The job is to have so many workers: within the limits, and not while some have reached the end. Processes to be ended
  // at once: those that are in no generation. The others leave between two batches.
  std::vector<int> on_resize(int workers, Clock::time_point now);
  // Why it cannot be so many; nothing if it can.
  std::optional<std::string> objection(int workers) const;

  // As Restarts.
  std::vector<int> due(Clock::time_point now);
  std::optional<Clock::time_point> next() const { return restarts_.next(); }
  bool waiting() const { return restarts_.waiting() > 0; }

  // Every member of the last generation has ended, at least one of them with 0. Who still lives has never joined.
  bool done() const { return finishing_ && !any_member(); }
  bool finishing() const { return finishing_; }  // some have reached the end of the job
  // The leader of the last generation has left since: what it had to do at the end nobody does.
  std::optional<int> leader_that_left() const {
    return leader_.left ? std::optional(leader_.place) : std::nullopt;
  }
  bool expelled(int place) const { return at(place).expelled; }
  // It was started while the job ran.
  bool later(int place) const { return at(place).later; }
  // Others train, and it has not joined them yet.
  bool newcomer(int place) const { return any_member() && !at(place).member; }
  // A generation has formed; how many of the last one train, without these and those that are being ended.
  bool formed() const { return leader_.place >= 0; }
  int training(const std::set<int>& without) const;
  // How many workers the job is to have, and can have at the most.
  int wanted() const;
  int most() const;
  // The place is one that the job is to have. All of these are below end().
  bool wants(int place) const;
  int end() const;
  int left() const { return left_; }
  int replaced() const { return restarts_.done(); }

 private:
  struct Size {
    int least = 1;  // workers
    int most = 0;   // places
  };
  struct Leader {
    int place = -1;
    bool left = false;
  };
  // What is known of a place, and of the process there.
  struct Place {
    bool runs = false;
    bool member = false;  // of the last generation, and it has not ended since
    bool expelled = false;
    bool dismissed = false;
    bool past_end = false;
    bool later = false;
    bool leaves = false;  // its host does, or was lost: nothing starts there any more
    bool spare = false;   // the job is not to have it
    bool waits = false;   // while nobody can join: it begins again if no member is left
  };
  Place at(int place) const;
  bool any_member() const { return count(&Place::member) > 0; }
  bool leader_is_done() const {  // it has ended with 0
    return finishing_ && !leader_.left && leader_.place >= 0 && !at(leader_.place).member;
  }
  int count(bool Place::*what) const;
  std::vector<int> end_newcomers(const std::vector<int>& places);
  void finish();
  void begin_again(Clock::time_point now);

  Size size_;
  Restarts restarts_;
  std::map<int, Place> places_;
  Leader leader_;        // of the last generation
  bool closed_ = false;  // nobody can join
  bool finishing_ = false;
  int left_ = 0;
};

}  // namespace lockstep::control

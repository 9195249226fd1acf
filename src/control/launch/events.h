// What has happened to the workers of a job, and what it cost: for the report. Pure: time is an argument.
//
//   event         a worker died, hung, left or joined; the job was resized, began again, or ended early
//   first phase   the first that begins in a generation. Workers count the phases that they begin (rendezvous/news.h)
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/choice.h"
#include "control/launch/job_state.h"
#include "control/launch/node_roster.h"
#include "control/rendezvous/news.h"

namespace lockstep::control {

struct JobEvent {
  enum class Kind : std::uint8_t {
    kKilled,
    kExited,
    kNotStarted,
    kHung,
    kRefused,
    kLeft,
    kHostLost,
    kHostLeft,
    kJoined,
    kResized,
    kBeganAgain,
    kEnded,
  };

  Kind kind = Kind::kEnded;
  double at_s = 0;            // since the launcher began
  std::optional<int> worker;  // nothing: none in particular
  std::string host;           // the same
  // A signal, an exit code, an errno, or how many workers the job is to have.
  std::optional<int> value;
  std::string text;  // as the launcher tells the user

  // What it cost. Nothing: nobody has measured it, or it has not come to that.
  std::optional<double> waited_s;           // others had waited for it so long before
  std::optional<double> starting_ms;        // of one that joins: since its process was started
  std::optional<std::uint64_t> generation;  // the next one, or the one that it joined
  std::optional<double> formed_ms;          // from the event until that had formed
  std::optional<double> first_phase_ms;     // … until the first phase was done
};

// As the report spells them.
inline constexpr base::Choice<JobEvent::Kind> kEventKinds[] = {
    {JobEvent::Kind::kKilled, "killed"},          {JobEvent::Kind::kExited, "exited"},
    {JobEvent::Kind::kNotStarted, "not_started"}, {JobEvent::Kind::kHung, "hung"},
    {JobEvent::Kind::kRefused, "refused"},        {JobEvent::Kind::kLeft, "left"},
    {JobEvent::Kind::kHostLost, "host_lost"},     {JobEvent::Kind::kHostLeft, "host_left"},
    {JobEvent::Kind::kJoined, "joined"},          {JobEvent::Kind::kResized, "resized"},
    {JobEvent::Kind::kBeganAgain, "began_again"}, {JobEvent::Kind::kEnded, "ended"}};

// Threads:   one caller at a time.
// Blocking:  never; time is an argument.
// Failure:   none.
// Ownership: plain values; borrows the map.
class JobEvents {
 public:
  using Clock = std::chrono::steady_clock;

  // Hosts that join later are in the map, too, which outlives this.
  JobEvents(const HostMap& map, Clock::time_point began) : map_(map), began_(began) {}

  void on_started(int worker, Clock::time_point now);
  // Others have waited for this one in vain, and it is being ended: the event is now, and on_left() completes it.
  void on_expelled(int worker, double waited_s, Clock::time_point now);
  void on_left(const LeftWorker& left, std::string text, Clock::time_point now);
  enum class HostIs : bool { kLost, kLeaving };
  void on_host_gone(int node, HostIs how, std::string text, Clock::time_point now);
  void on_resized(int workers, std::string text, Clock::time_point now);

  // Who was not in the generation before has joined. The first generation is no event.
  void on_formed(std::uint64_t generation, const std::vector<int>& workers, Clock::time_point now);
  // The first phase of the last generation was done at this time.
  void on_first_phase(Clock::time_point when);

  // The job is cut short. Only the first call counts, and finish() says why.
  void on_ending(Clock::time_point now);
  void finish(std::optional<int> worker, std::string text);

  const std::vector<JobEvent>& list() const { return list_; }

 private:
  struct Expelled {
    Clock::time_point at;
    double waited_s = 0;
  };

  JobEvent& add(JobEvent::Kind kind, std::optional<int> worker, std::string text,
                Clock::time_point now);
  double ms_since(const JobEvent& event, Clock::time_point now) const;

  const HostMap& map_;
  Clock::time_point began_;
  std::vector<JobEvent> list_;
  std::set<int> members_;  // of the last generation, with the same processes
  std::map<int, Clock::time_point> started_;
  std::map<int, Expelled> expelled_;
  std::uint64_t generation_ = 0;  // the last that has formed
  std::optional<Clock::time_point> ending_;
};

// When the first phase of a generation is done, by what one of its workers says.
//
// A phase that fails because a worker was lost ends as well. So the end of a phase counts when the next one has begun, or
// when the worker has ended well, and is forgotten when a worker is lost before that.
//
// Threads, Blocking, Failure, Ownership: as JobEvents.
class FirstPhase {
 public:
  using Clock = std::chrono::steady_clock;

  // A generation has formed. This worker of it had begun so many phases before.
  void begin(int worker, std::uint64_t phases, Clock::time_point now);
  void forget() { worker_.reset(); }

  // Whom to look at, and how soon again: more seldom with time, so that a long phase is not disturbed.
  std::optional<int> worker() const { return worker_; }
  Clock::duration pause(Clock::time_point now) const;

  // When the phase was done, once.
  std::optional<Clock::time_point> look(const Said& said, Clock::time_point now);
  std::optional<Clock::time_point> end_well();

 private:
  static constexpr std::chrono::milliseconds kLeastPause{5};
  static constexpr int kPartOfTime = 20;  // a pause is a twentieth of the time since then

  std::optional<int> worker_;
  std::uint64_t before_ = 0;
  Clock::time_point formed_;
  std::optional<Clock::time_point> done_;
};

}  // namespace lockstep::control

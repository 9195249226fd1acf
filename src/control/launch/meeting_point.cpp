#include "control/launch/meeting_point.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <iterator>

#include "control/launch/process_table.h"

namespace lockstep::control {
namespace {

MembershipRules membership_rules(const RunOptions& options, int workers) {
  const std::chrono::duration<double> patience(options.step_timeout_s.value_or(kStepTimeout));
  return {.least = options.min_workers.value_or(kMinWorkers),
          .wanted = workers,
          .patience = std::chrono::ceil<std::chrono::milliseconds>(patience),
          .began_before = options.began_before};
}

// One connection for each worker that joins. If the limit does not allow it, the door lets them in one after the other.
void raise_open_files_by(int workers) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::min(limit.rlim_max, limit.rlim_cur + static_cast<rlim_t>(workers) + 1);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::optional<Hangs::Clock::duration> asked_limit(const RunOptions& options) {
  if (!options.step_timeout_s) return std::nullopt;
  return std::chrono::duration_cast<Hangs::Clock::duration>(
      std::chrono::duration<double>(*options.step_timeout_s));
}

}  // namespace

MeetingPoint::MeetingPoint(boost::asio::io_context& context, const RunOptions& options,
                           Meeting& meeting, std::optional<NewsPage> news, Judge& judge)
    : map_(meeting.map),
      stopped_code_(options.stopped_code),
      judge_(judge),
      news_(std::move(news)),
      hangs_(asked_limit(options)),
      look_again_(context),
      look_soon_(context) {
  if (news_) look_for_hangs();
  if (!meeting.listener.fd) return;
  const int workers = map_.nodes() == 1 ? options.workers : map_.world();
  ServerOptions rules{meeting.map.world(), meeting.secret};
  if (news_) rules.elastic = membership_rules(options, workers);
  server_.emplace(context, std::move(meeting.listener), rules);
  if (!news_) return;
  server_->listen(
      {.formed = [this](std::uint64_t generation,
                        const std::vector<int>& places) { take_formed(generation, places); },
       .newcomers =
           [this](int count) {
             set_newcomers(count);
             judge_.on_newcomers(count);
           },
       .expelled = [this, patience = options.step_timeout_s.value_or(kStepTimeout)](
                       int place) { judge_.on_expelled(place, patience); },
       .dismissed = [this](int place) { judge_.on_dismissed(place); }});
  // From the beginning: the first generation must not form before the last worker has been started.
  for (int rank = 0; rank < workers; ++rank) running_[rank] = 0;
  tell_server();
}

void MeetingPoint::take_formed(std::uint64_t generation, const std::vector<int>& places) {
  const bool again = std::none_of(places.begin(), places.end(),
                                  [this](int place) { return members_.contains(place); });
  members_ = {places.begin(), places.end()};
  judge_.on_formed(generation, places, again);
  const auto here =
      std::find_if(places.begin(), places.end(), [this](int place) { return map_.here(place); });
  if (generation == 1 || here == places.end()) return;
  first_phase_.begin(*here, news_->said(*here).phases, FirstPhase::Clock::now());
  look_for_first_phase();
}

void MeetingPoint::look_for_first_phase() {
  const auto place = first_phase_.worker();
  if (!place) return;
  const auto now = FirstPhase::Clock::now();
  if (const auto done = first_phase_.look(news_->said(*place), now))
    return judge_.on_first_phase(*done);
  look_soon_.expires_after(first_phase_.pause(now));  // ends a wait for an earlier generation
  look_soon_.async_wait([this](const boost::system::error_code& error) {
    if (!error) look_for_first_phase();
  });
}

void MeetingPoint::take(const KeeperEvent& event) {
  switch (event.kind) {
    case KeeperEvent::Kind::kStarted:
      running_[event.rank] = event.pid;
      members_.erase(event.rank);
      hung_.erase(event.rank);
      if (news_) news_->forget(event.rank);
      return tell_server();
    case KeeperEvent::Kind::kEnded:
      take_end(worker_end(event.rank, event.value));
      // It has reached the end of the job: nobody is to join from here on, and none that is left to begin it again.
      if (const auto end = worker_end(event.rank, event.value);
          news_ && server_ && (!end.failed() || (stopped_code_ && end.exited_with(*stopped_code_))))
        server_->set_wanted(0);
      running_.erase(event.rank);
      return;
    case KeeperEvent::Kind::kNotStarted:
      running_.erase(event.rank);
      return;
    case KeeperEvent::Kind::kAllReported:  // those that ended together leave together
      return tell_server();
    case KeeperEvent::Kind::kSwept:
      return;
  }
}

void MeetingPoint::take_end(const WorkerEnd& end) {
  if (!members_.contains(end.rank)) return;
  if (end.failed()) return first_phase_.forget();
  if (end.rank != first_phase_.worker()) return;
  if (const auto done = first_phase_.end_well()) judge_.on_first_phase(*done);
}

std::optional<std::string> MeetingPoint::objection(int workers) const {
  const int most = news_ ? news_->most_workers() : 0;
  if (most == 0) {
    return "its workers have not ended a first batch; or they cannot meet between two: only the "
           "loop of a Job or a Trainer can";
  }
  if (workers <= most) return std::nullopt;
  return fmt::format("it has {} shard{}: that many workers at most", most, most == 1 ? "" : "s");
}

void MeetingPoint::set_map(const HostMap& map) {
  raise_open_files_by(map.world() - map_.world());
  map_ = map;
  if (!server_) return;
  server_->set_places(map.world());
  server_->set_wanted(map.world());
}

void MeetingPoint::set_newcomers(int count) {
  if (news_) news_->set_newcomers(count);
}

int MeetingPoint::running() const {
  return static_cast<int>(std::count_if(running_.begin(), running_.end(),
                                        [this](const auto& one) { return map_.here(one.first); }));
}

void MeetingPoint::resize(int workers) {
  if (server_) server_->set_wanted(workers);
}

void MeetingPoint::dismiss(const std::vector<int>& ranks) {
  if (server_) server_->dismiss(ranks);
}

void MeetingPoint::tell_server() {
  if (!news_ || !server_) return;
  std::set<int> alive;
  for (const auto& [place, pid] : running_) alive.insert(place);
  server_->set_alive(std::move(alive));
}

// Workers of this host: only they write to its page.
void MeetingPoint::look_for_hangs() {
  std::map<int, Said> said;
  for (const auto& [place, pid] : running_) {
    if (map_.here(place) && pid != 0 && !hung_.contains(place)) said[place] = news_->said(place);
  }
  const auto found = hangs_.look(said, Hangs::Clock::now());
  if (!found.silent.empty()) end_hung(found);
  look_again_.expires_after(Hangs::kEvery);
  look_again_.async_wait([this](const boost::system::error_code& error) {
    if (!error) look_for_hangs();
  });
}

// A worker that is stopped by a signal hangs, whatever it did; and it waits for nobody.
void MeetingPoint::end_hung(const Hangs::Found& found) {
  const auto table = read_process_table();
  const auto stopped = [&](int place) { return is_stopped(table, running_.at(place)); };
  std::set<int> ended;
  if (!std::all_of(found.waiters.begin(), found.waiters.end(), stopped))
    ended = {found.hung.begin(), found.hung.end()};
  std::copy_if(found.silent.begin(), found.silent.end(), std::inserter(ended, ended.end()),
               stopped);
  for (const int place : ended) {
    hung_.insert(place);  // once
    judge_.on_expelled(place, std::chrono::duration<double>(found.limit).count());
  }
}

}  // namespace lockstep::control

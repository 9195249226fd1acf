#include "control/launch/meeting_point.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace lockstep::control {
namespace {

MembershipRules membership_rules(const RunOptions& options, int workers) {
  const std::chrono::duration<double> patience(options.step_timeout_s);
  return {.least = options.min_workers.value_or(kMinWorkers),
          .wanted = workers,
          .patience = std::chrono::ceil<std::chrono::milliseconds>(patience)};
}

}  // namespace

MeetingPoint::MeetingPoint(boost::asio::io_context& context, const RunOptions& options,
                           Meeting& meeting, std::optional<NewsPage> news, Judge& judge)
    : map_(meeting.map), stopped_code_(options.stopped_code), news_(std::move(news)) {
  if (!meeting.listener.fd) return;
  const int workers = map_.nodes() == 1 ? options.workers : map_.world();
  ServerOptions rules{meeting.map.world(), meeting.secret};
  if (news_) rules.elastic = membership_rules(options, workers);
  server_.emplace(context, std::move(meeting.listener), rules);
  if (!news_) return;
  server_->listen(
      {.formed = [&judge](std::uint64_t generation,
                          const std::vector<int>& places) { judge.on_formed(generation, places); },
       .newcomers =
           [this, &judge](int count) {
             set_newcomers(count);
             judge.on_newcomers(count);
           },
       .expelled = [&judge](int place) { judge.on_expelled(place); },
       .dismissed = [&judge](int place) { judge.on_dismissed(place); }});
  // From the beginning: the first generation must not form before the last worker has been started.
  for (int rank = 0; rank < workers; ++rank) running_.insert(rank);
  tell_server();
}

void MeetingPoint::take(const KeeperEvent& event) {
  switch (event.kind) {
    case KeeperEvent::Kind::kStarted:
      running_.insert(event.rank);
      return tell_server();
    case KeeperEvent::Kind::kEnded:
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

std::optional<std::string> MeetingPoint::objection(int workers) const {
  const int most = news_ ? news_->most_workers() : 0;
  if (most == 0) {
    return "its workers have not ended a first batch; or they cannot meet between two: only the "
           "loop "
           "of a Job or a Trainer can, over the engine shm";
  }
  if (workers <= most) return std::nullopt;
  return fmt::format("it has {} shard{}: that many workers at most", most, most == 1 ? "" : "s");
}

void MeetingPoint::set_newcomers(int count) {
  if (news_) news_->set_newcomers(count);
}

int MeetingPoint::running() const {
  return static_cast<int>(std::count_if(running_.begin(), running_.end(),
                                        [this](int rank) { return map_.here(rank); }));
}

void MeetingPoint::resize(int workers) {
  if (server_) server_->set_wanted(workers);
}

void MeetingPoint::tell_server() {
  if (news_ && server_) server_->set_alive(running_);
}

}  // namespace lockstep::control

#include "control/launch/meeting_point.h"

#include <chrono>

namespace lockstep::control {
namespace {

MembershipRules membership_rules(const RunOptions& options) {
  const std::chrono::duration<double> patience(options.step_timeout_s);
  return {.least = options.min_workers.value_or(kMinWorkers),
          .patience = std::chrono::ceil<std::chrono::milliseconds>(patience)};
}

}  // namespace

MeetingPoint::MeetingPoint(boost::asio::io_context& context, const RunOptions& options,
                           Meeting& meeting, std::optional<NewsPage> news, Judge& judge)
    : news_(std::move(news)) {
  if (!meeting.listener.fd) return;
  ServerOptions rules{meeting.map.world(), meeting.secret};
  if (news_) rules.elastic = membership_rules(options);
  server_.emplace(context, std::move(meeting.listener), rules);
  if (!news_) return;
  server_->listen(
      {.formed = [&judge](std::uint64_t generation,
                          const std::vector<int>& places) { judge.on_formed(generation, places); },
       .newcomers = [this](int count) { news_->set_newcomers(count); },
       .expelled = [&judge](int place) { judge.on_expelled(place); }});
  // From the beginning: the first generation must not form before the last worker has been started.
  for (int rank = 0; rank < meeting.map.world(); ++rank) running_.insert(rank);
  tell_server();
}

void MeetingPoint::take(const KeeperEvent& event) {
  switch (event.kind) {
    case KeeperEvent::Kind::kStarted:
      running_.insert(event.rank);
      return tell_server();
    case KeeperEvent::Kind::kEnded:
    case KeeperEvent::Kind::kNotStarted:
      running_.erase(event.rank);
      return;
    case KeeperEvent::Kind::kAllReported:  // those that ended together leave together
      return tell_server();
    case KeeperEvent::Kind::kSwept:
      return;
  }
}

void MeetingPoint::tell_server() {
  if (news_ && server_) server_->set_alive(running_);
}

}  // namespace lockstep::control

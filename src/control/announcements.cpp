#include "control/announcements.h"

#include <utility>

#include "control/turns.h"

namespace lockstep::control {

Announcements::Announcements(Comm comm)
    : turns_(std::make_unique<Turns>()), comm_(std::move(comm)) {}
Announcements::~Announcements() = default;

std::shared_ptr<const Announcement> Announcements::say(const Record& record,
                                                       std::string_view call) {
  // The caller may drop its announcement early, so it is kept here until the operation has left its memory.
  while (!under_way_.empty() && under_way_.front()->complete()) under_way_.pop_front();
  const auto announcement = std::make_shared<Announcement>();
  announcement->records_.resize(static_cast<std::size_t>(comm_.size()));
  announcement->records_[static_cast<std::size_t>(comm_.rank())] = record;
  under_way_.push_back(announcement);
  const CallName name(comm_, call);
  announcement->work_ =
      comm_.all_gather({announcement->records_.data(),
                        announcement->records_.size() * record.size(), DType::kInt64});
  return announcement;
}

void Announcements::disagree(const Mismatch& difference) {
  comm_.leave(difference);
  throw difference;
}

}  // namespace lockstep::control

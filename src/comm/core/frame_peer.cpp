#include "comm/core/frame_peer.h"

#include <fmt/format.h>

#include <utility>

namespace lockstep::comm {

void FramePeer::take_ask(Slot slot, std::uint64_t number, std::size_t total) {
  EarlyMessage asked{number, total, true, {}};
  if (Post* const post = posts_.receives.take_wanted(slot))
    posts_.match(*post, std::move(asked));
  else
    posts_.receives.arrived.emplace(slot, std::move(asked));
}

void FramePeer::take_notice(std::string_view notice) {
  news_.said = decode_notice(notice);
  if (!news_.said)
    news_.said = Failure{ErrorKind::kPeerLost, {rank_}, fmt::format("rank {} has ended", rank_)};
  news_.receipt_due = true;
}

}  // namespace lockstep::comm

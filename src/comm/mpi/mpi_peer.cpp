#include "comm/mpi/mpi_peer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace lockstep::comm {
namespace {

// Frames under way to one peer: so many that it never waits for the next one, and few enough that
// they stay in a cache.
constexpr std::size_t kMostSending = 4;
constexpr std::size_t kMostSpare = 2 * kMostSending;
constexpr std::size_t kMostFrame = sizeof(MpiFrame) + kMostMpiData;
// Longer frames use memory that is kept: it is registered with the network once.
constexpr std::size_t kMostShortFrame = sizeof(MpiFrame) + kShortMessageBytes;

bool is_long(std::size_t bytes) {
  return bytes > kMostShortFrame && bytes <= kMostFrame;
}

[[noreturn]] void refuse_frame(int rank) {
  throw Mismatch(
      fmt::format("rank {} sends messages that are no frames: it is broken, or of another build",
                  rank),
      {rank});
}

}  // namespace

std::unique_ptr<std::byte[]> MpiPeer::memory_for(std::size_t bytes) {
  if (!is_long(bytes)) return std::make_unique_for_overwrite<std::byte[]>(bytes);
  if (spare_.empty()) return std::make_unique_for_overwrite<std::byte[]>(kMostFrame);
  auto memory = std::move(spare_.front());
  spare_.pop_front();
  return memory;
}

void MpiPeer::keep(Flight flight) {
  if (is_long(flight.bytes) && spare_.size() < kMostSpare)
    spare_.push_back(std::move(flight.memory));
}

void MpiPeer::arrive(std::size_t bytes) {
  Flight flight{nullptr, memory_for(bytes), bytes};
  flight.request = communicator_.receive(rank(), flight.memory.get(), bytes);
  coming_.push_back(std::move(flight));
}

bool MpiPeer::read() {
  bool took = false;
  while (!coming_.empty() && coming_.front().request->done()) {
    Flight flight = std::move(coming_.front());
    coming_.pop_front();
    MpiFrame frame;
    if (flight.bytes < sizeof frame || flight.bytes > kMostFrame) refuse_frame(rank());
    std::memcpy(&frame, flight.memory.get(), sizeof frame);
    if (frame.mark != MpiFrame::kMark) refuse_frame(rank());
    take(frame, flight.memory.get() + sizeof frame, flight.bytes - sizeof frame);
    keep(std::move(flight));
    took = true;
  }
  return took;
}

void MpiPeer::take(const MpiFrame& frame, const std::byte* bytes, std::size_t count) {
  switch (frame.kind) {
    case MpiFrame::Kind::kMessage:
      return take_message(frame, bytes, count);
    case MpiFrame::Kind::kAsk:
      return take_ask(frame.slot, frame.number, frame.total);
    case MpiFrame::Kind::kGrant:
      return posts().sends.granted(frame.number);
    case MpiFrame::Kind::kData:
      return take_data(frame, bytes, count);
    case MpiFrame::Kind::kNotice:
      return take_notice({reinterpret_cast<const char*>(bytes), count});
    case MpiFrame::Kind::kReceipt:
      news_.receipt_came = true;
      return;
    case MpiFrame::Kind::kBye:
      parting_.came = parting_.due = true;
      return;
  }
  refuse_frame(rank());
}

void MpiPeer::take_message(const MpiFrame& frame, const std::byte* bytes, std::size_t count) {
  if (frame.total != count) refuse_frame(rank());
  Post* const post = posts().receives.take_wanted(frame.slot);
  if (post && count <= post->bytes) {
    if (count > 0) std::memcpy(post->data, bytes, count);
    post->total = count;
    post->state = PostState::kDone;
    return;
  }
  EarlyMessage early{frame.number, count, false, {bytes, bytes + count}};
  if (post) return posts().match(*post, std::move(early));
  posts().receives.arrived.emplace(frame.slot, std::move(early));
}

// A message whose receive was withdrawn goes nowhere.
void MpiPeer::take_data(const MpiFrame& frame, const std::byte* bytes, std::size_t count) {
  const auto found = posts().receives.granted.find(frame.number);
  if (found == posts().receives.granted.end()) return;
  Post& post = *found->second;
  if (count > post.total - post.moved) refuse_frame(rank());
  if (count > 0) std::memcpy(post.data + post.moved, bytes, count);
  post.moved += count;
  if (post.moved < post.total) return;
  post.state = PostState::kDone;
  posts().receives.granted.erase(found);
}

bool MpiPeer::write() {
  while (!sending_.empty() && sending_.front().request->done()) {
    keep(std::move(sending_.front()));
    sending_.pop_front();
  }
  bool wrote = false;
  while (put_news() || (sending_.size() < kMostSending && put_next())) wrote = true;
  return wrote;
}

// News does not wait until other frames are done: the peer may be stopped, and this worker may end.
// True if there was some.
bool MpiPeer::put_news() {
  if (parting_.sent) return false;
  if (std::exchange(news_.receipt_due, false)) {
    put({.kind = MpiFrame::Kind::kReceipt}, nullptr, 0);
  } else if (!news_.notice.empty()) {
    const std::string notice = std::exchange(news_.notice, {});
    put({.kind = MpiFrame::Kind::kNotice, .total = notice.size()}, notice.data(), notice.size());
  } else if (parting_.due) {
    parting_.sent = true;
    put({.kind = MpiFrame::Kind::kBye}, nullptr, 0);
  } else {
    return false;
  }
  return true;
}

// True if there was something to send.
bool MpiPeer::put_next() {
  if (parting_.sent) return false;
  if (!posts().receives.grants.empty()) {
    const Grant grant = posts().receives.grants.front();
    posts().receives.grants.pop_front();
    put({.kind = MpiFrame::Kind::kGrant,
         .slot = grant.slot,
         .number = grant.number,
         .total = grant.total},
        nullptr, 0);
  } else if (!posts().sends.to_begin.empty()) {
    begin_send();
  } else if (!posts().sends.streaming.empty()) {
    put_data();
  } else {
    return false;
  }
  return true;
}

void MpiPeer::put(const MpiFrame& frame, const void* bytes, std::size_t count) {
  Flight flight{nullptr, memory_for(sizeof frame + count), sizeof frame + count};
  std::memcpy(flight.memory.get(), &frame, sizeof frame);
  if (count > 0) std::memcpy(flight.memory.get() + sizeof frame, bytes, count);
  flight.request = communicator_.send(rank(), flight.memory.get(), flight.bytes);
  sending_.push_back(std::move(flight));
}

// A post leaves its queue when it is safe elsewhere, because put() may throw.
void MpiPeer::begin_send() {
  Post* const post = posts().sends.to_begin.front();
  const MpiFrame frame{.kind = post->asks ? MpiFrame::Kind::kAsk : MpiFrame::Kind::kMessage,
                       .slot = post->slot,
                       .number = post->number,
                       .total = post->bytes};
  if (post->asks) {
    posts().sends.asked[post->number] = post;
    posts().sends.to_begin.pop_front();
    return put(frame, nullptr, 0);
  }
  put(frame, post->data, post->bytes);
  posts().sends.to_begin.pop_front();
  post->state = PostState::kDone;
}

void MpiPeer::put_data() {
  Post* const post = posts().sends.streaming.front();
  const std::size_t part = std::min(post->bytes - post->moved, kMostMpiData);
  put({.kind = MpiFrame::Kind::kData,
       .slot = post->slot,
       .number = post->number,
       .total = post->bytes},
      post->data + post->moved, part);
  post->moved += part;
  if (post->moved < post->bytes) return;
  post->state = PostState::kDone;
  posts().sends.streaming.pop_front();
}

void MpiPeer::leave(MpiLeftover& leftover) {
  for (auto* flights : {&coming_, &sending_}) {
    for (Flight& flight : *flights)
      leftover.requests.emplace_back(std::move(flight.request), std::move(flight.memory));
    flights->clear();
  }
}

}  // namespace lockstep::comm

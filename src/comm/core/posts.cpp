#include "comm/core/posts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace lockstep::comm {
namespace {

[[noreturn]] void refuse(Post& post, const char* what) {
  const Mismatch error(
      fmt::format("a message of rank {} {}: it is broken, or of another build", post.peer, what),
      {post.peer});
  post.fail(failure_from(error));
  throw error;
}

// The first of a slot, in order; the end if there is none.
template <typename Queue>
typename Queue::iterator first_of(Queue& queue, Slot slot) {
  const auto found = queue.lower_bound(slot);
  return found != queue.end() && found->first == slot ? found : queue.end();
}

template <typename Queue>
auto take(Queue& queue, typename Queue::iterator item) {
  auto taken = std::move(item->second);
  queue.erase(item);
  return taken;
}

}  // namespace

PostPtr make_send(int peer, Slot slot, const void* data, std::size_t bytes) {
  auto post = make_recv(peer, slot, const_cast<void*>(data), bytes);
  post->sends = true;
  return post;
}

PostPtr make_recv(int peer, Slot slot, void* data, std::size_t bytes) {
  auto post = std::make_shared<Post>();
  post->peer = peer;
  post->slot = slot;
  post->data = static_cast<std::byte*>(data);
  post->bytes = bytes;
  return post;
}

void Sends::add(const PostPtr& post) {
  in_a_row = (in_a_row + 1) % kShortInARow;
  post->asks = post->bytes > short_bytes || in_a_row == 0;
  post->number = next_number++;
  to_begin.push_back(post);
}

void Sends::granted(std::uint64_t number) {
  const auto found = asked.find(number);
  if (found == asked.end()) return;
  streaming.push_back(found->second);
  asked.erase(found);
}

PostPtr Receives::take_wanted(Slot slot) {
  const auto found = first_of(wanted, slot);
  return found == wanted.end() ? nullptr : take(wanted, found);
}

std::optional<EarlyMessage> Receives::take_arrived(Slot slot, bool whole_only) {
  const auto found = first_of(arrived, slot);
  if (found == arrived.end() || (whole_only && found->second.announced)) return std::nullopt;
  return take(arrived, found);
}

void PeerPosts::match(const PostPtr& post, EarlyMessage arrival) {
  if (arrival.total > post->bytes) refuse(*post, "is longer than its header said");
  post->total = arrival.total;
  if (arrival.announced) {
    post->number = arrival.number;
    if (!receives.granted.emplace(arrival.number, post).second)
      refuse(*post, "was announced twice");
    receives.grants.push_back({post->slot, arrival.number, arrival.total});
    return;
  }
  if (!arrival.bytes.empty()) std::memcpy(post->data, arrival.bytes.data(), arrival.bytes.size());
  post->state = PostState::kDone;
}

void PeerPosts::retire(const PostPtr& post) {
  std::erase(sends.to_begin, post);
  std::erase(sends.streaming, post);
  std::erase_if(post->sends ? sends.asked : receives.granted,
                [&](const auto& item) { return item.second == post; });
  const auto [begin, end] = receives.wanted.equal_range(post->slot);
  const auto found =
      std::find_if(begin, end, [&](const auto& item) { return item.second == post; });
  if (found != end) receives.wanted.erase(found);
}

void PeerPosts::fail(const Failure& failure) {
  for (auto* queue : {&sends.to_begin, &sends.streaming}) {
    for (const PostPtr& post : *queue) post->fail(failure);
    queue->clear();
  }
  for (auto* numbered : {&sends.asked, &receives.granted}) {
    for (const auto& [number, post] : *numbered) post->fail(failure);
    numbered->clear();
  }
  for (const auto& [slot, post] : receives.wanted) post->fail(failure);
  receives.wanted.clear();
}

}  // namespace lockstep::comm

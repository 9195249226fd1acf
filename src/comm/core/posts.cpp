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

}  // namespace

Post make_send(int peer, Slot slot, const void* data, std::size_t bytes) {
  Post post = make_recv(peer, slot, const_cast<void*>(data), bytes);
  post.sends = true;
  return post;
}

Post make_recv(int peer, Slot slot, void* data, std::size_t bytes) {
  Post post;
  post.peer = peer;
  post.slot = slot;
  post.data = static_cast<std::byte*>(data);
  post.bytes = bytes;
  return post;
}

void Sends::add(Post& post) {
  in_a_row = (in_a_row + 1) % kShortInARow;
  post.asks =
      post.bytes > short_bytes || in_a_row == 0 || bytes_in_a_row + post.bytes > kShortBytesInARow;
  bytes_in_a_row = post.asks ? 0 : bytes_in_a_row + post.bytes;
  post.number = next_number++;
  to_begin.push_back(&post);
}

// Which of them is not known: they count as equally long.
void Sends::received(std::uint64_t messages) {
  const std::uint64_t left = in_a_row - std::min(in_a_row, messages);
  bytes_in_a_row = left == 0 ? 0 : bytes_in_a_row / in_a_row * left;
  in_a_row = left;
}

void Sends::granted(std::uint64_t number) {
  const auto found = asked.find(number);
  if (found == asked.end()) return;
  streaming.push_back(found->second);
  asked.erase(found);
}

Post* Receives::take_wanted(Slot slot) {
  const auto found = std::find_if(wanted.begin(), wanted.end(),
                                  [slot](const Post* post) { return post->slot == slot; });
  if (found == wanted.end()) return nullptr;
  Post* const first = *found;
  wanted.erase(found);
  return first;
}

std::optional<EarlyMessage> Receives::take_arrived(Slot slot, bool whole_only) {
  const auto found = arrived.lower_bound(slot);
  if (found == arrived.end() || found->first != slot) return std::nullopt;
  if (whole_only && found->second.announced) return std::nullopt;
  EarlyMessage first = std::move(found->second);
  arrived.erase(found);
  return first;
}

void PeerPosts::match(Post& post, EarlyMessage arrival) {
  if (arrival.total > post.bytes) refuse(post, "is longer than its header said");
  post.total = arrival.total;
  if (arrival.announced) {
    post.number = arrival.number;
    if (!receives.granted.emplace(arrival.number, &post).second)
      refuse(post, "was announced twice");
    receives.grants.push_back({post.slot, arrival.number, arrival.total});
    return;
  }
  if (!arrival.bytes.empty()) std::memcpy(post.data, arrival.bytes.data(), arrival.bytes.size());
  post.state = PostState::kDone;
}

void PeerPosts::retire(Post& post) {
  std::erase(sends.to_begin, &post);
  std::erase(sends.streaming, &post);
  std::erase_if(post.sends ? sends.asked : receives.granted,
                [&](const auto& item) { return item.second == &post; });
  std::erase(receives.wanted, &post);
}

void PeerPosts::fail(const Failure& failure) {
  for (auto* queue : {&sends.to_begin, &sends.streaming}) {
    for (Post* const post : *queue) post->fail(failure);
    queue->clear();
  }
  for (auto* numbered : {&sends.asked, &receives.granted}) {
    for (const auto& [number, post] : *numbered) post->fail(failure);
    numbered->clear();
  }
  for (Post* const post : receives.wanted) post->fail(failure);
  receives.wanted.clear();
}

}  // namespace lockstep::comm

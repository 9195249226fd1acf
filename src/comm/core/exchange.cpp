#include "comm/core/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/hash.h"

namespace lockstep::comm {

Slot payload_slot(Slot greetings, const Header& header, Stage stage) {
  std::uint64_t mixed = base::mix64(greetings ^ base::mix64(header.sequence));
  mixed = base::mix64(mixed ^ base::mix64(header.count) ^ header.call.digest());
  mixed = base::mix64(mixed ^ (std::uint64_t{header.detail} << 32) ^
                      (static_cast<std::uint64_t>(header.kind) << 24) ^
                      (static_cast<std::uint64_t>(header.dtype) << 16) ^
                      (static_cast<std::uint64_t>(header.op) << 8) ^
                      static_cast<std::uint64_t>(header.algorithm));
  return ((mixed >> 4) << 3) + 2 + static_cast<Slot>(stage);
}

Exchange::Exchange(const Setting& setting, const Header& header, Deadline deadline)
    : setting_(setting), header_(header), deadline_(deadline), own_(encode_header(header)) {
  const auto members = setting.members;
  const auto self = std::find(members.begin(), members.end(), setting.link.rank());
  LOCKSTEP_CHECK(self != members.end(), "a worker runs operations of its own groups only");
  rank_ = static_cast<int>(self - members.begin());
  peers_.reserve(members.size() - 1);
  for (int i = 1; i < size(); ++i) peers_.push_back((rank_ + i) % size());
  if (!has_board()) begun_ = Deadline::Clock::now();
}

std::uint32_t Exchange::tag() const {
  return static_cast<std::uint32_t>(
      base::mix64(setting_.greetings ^ base::mix64(header_.sequence)));
}

std::string Exchange::doing() const {
  return describe(header_);
}

template <typename Failed>
void Exchange::end(const Failed& error) {
  link().fail(failure_from(error));
  throw error;
}

// A worker that waits for a peer, which itself waits for a third one, would blame the wrong worker.
// So a late worker tells for whom it waited, listens for a moment to what that one says, and
// follows the trail to its silent end. A worker that is not late yet answers as well: see
// Link::waits_for. `seen` ends the trail if workers wait for each other in a circle.
Failure Exchange::first_cause(Failure own) const {
  constexpr auto kMoment = std::chrono::milliseconds(300);
  link().tell(own);
  const auto deadline = Deadline::after(kMoment);
  std::set<int> seen{link().rank()};
  Failure cause = std::move(own);
  while (cause.kind == ErrorKind::kTimeout && cause.ranks.size() == 1 &&
         seen.insert(cause.ranks[0]).second) {
    const auto told = link().heard_from(cause.ranks[0], deadline);
    if (!told) break;
    const bool blames_back = told->ranks.size() == 1 && seen.contains(told->ranks[0]);
    if (!blames_back) cause = *told;
  }
  return cause;
}

void Exchange::late(int peer) {
  const std::chrono::duration<double> waited = Deadline::Clock::now() - begun_;
  const auto text =
      fmt::format("rank {} waited {:.1f} s for rank {} in {}; {}", link().rank(), waited.count(),
                  world_rank(peer), doing(), silence_hint(link().over_network()));
  const Failure cause = first_cause({ErrorKind::kTimeout, {world_rank(peer)}, text});
  link().fail(cause);
  raise(cause);
}

// Adds to a lost peer in which operation it was missed. What a peer told about others is passed on
// unchanged.
template <typename Call>
auto Exchange::guarded(int peer, Call&& call) {
  try {
    return call();
  } catch (const PeerLost& lost) {
    if (link().failure() || lost.ranks() != std::vector<int>{world_rank(peer)}) end(lost);
    end(PeerLost(fmt::format("{}; rank {} needed it in {}", lost.what(), link().rank(), doing()),
                 lost.ranks()));
  } catch (const Timeout& late) {
    // A peer was late and told so. The worker that it names may be waiting itself: follow the
    // trail.
    const Failure cause = link().failure() ? failure_from(late) : first_cause(failure_from(late));
    link().fail(cause);
    raise(cause);
  } catch (const Error& error) {
    link().fail(failure_from(error));
    throw;
  }
}

void Exchange::pin(std::size_t bytes) {
  setting_.board->blank().header = own_;
  setting_.board->pin(bytes);
  pinned_ = true;
  met_ = false;
}

void Exchange::begin(std::span<const Buffer> data) {
  if (pinned_) return;
  std::byte* const card = setting_.board->blank().bytes;
  std::byte* at = card;
  for (const Buffer& buffer : data) {
    if (buffer.count == 0) continue;
    std::memcpy(at, buffer.data, buffer.bytes());
    at += buffer.bytes();
  }
  pin(static_cast<std::size_t>(at - card));
}

void Exchange::show(std::span<const Buffer> buffers) {
  if (pinned_) return;
  LOCKSTEP_CHECK(buffers.size() * sizeof(ArenaAddress) <= kCardBytes, "a worker has few buffers");
  std::byte* at = setting_.board->blank().bytes;
  for (const Buffer& buffer : buffers) {
    const ArenaAddress address = locate(buffer);
    std::memcpy(at, &address, sizeof address);
    at += sizeof address;
  }
  pin(buffers.size() * sizeof(ArenaAddress));
}

void Exchange::await_all() {
  // The time since the card was pinned was not spent waiting.
  if (!met_ && !all_have_come()) begun_ = Deadline::Clock::now();
  for (const int peer : peers_) {
    if (!setting_.board->has_come(peer)) link().waits_for(world_rank(peer));
    if (!guarded(peer, [&] { return setting_.board->await(peer, deadline_); })) late(peer);
    const HeaderBytes theirs = setting_.board->card(peer).header;
    if (theirs != own_) compare(peer, theirs);
  }
  link().waits_for(kNoRank);  // what follows may take long
  met_ = true;
}

bool Exchange::all_have_come() const {
  return std::all_of(peers_.begin(), peers_.end(),
                     [&](int peer) { return setting_.board->has_come(peer); });
}

bool Exchange::all_come_at_once() const {
  return std::all_of(peers_.begin(), peers_.end(),
                     [&](int peer) { return setting_.board->comes_at_once(peer); });
}

bool Exchange::all_share(std::size_t count) const {
  for (int member = 0; member < size(); ++member) {
    for (std::size_t i = 0; i < count; ++i) {
      ArenaAddress address;
      std::memcpy(&address, card_of(member) + i * sizeof address, sizeof address);
      if (!address.shared()) return false;
    }
  }
  return true;
}

Exchange Exchange::on_host() const {
  Setting setting{setting_.link, setting_.neighbours, setting_.greetings, setting_.scratch,
                  setting_.host_board};
  return {setting, header_, deadline_};
}

void Exchange::part() {
  pin(0);
}

ArenaAddress Exchange::locate(const Buffer& data) const {
  Host* host = link().host();
  if (host == nullptr) return {};
  if (host->staging && data.data == host->staging->own()) return {ArenaAddress::kStaging, 0};
  return host->memory.locate(data.data, data.bytes(), setting_.members);
}

std::shared_ptr<std::byte> Exchange::resolve(int peer, ArenaAddress address, const Buffer& like) {
  const Host& host = *link().host();
  if (host.staging && address == ArenaAddress{ArenaAddress::kStaging, 0} &&
      like.bytes() <= kStagingBytes)  // the link keeps it mapped
    return {std::shared_ptr<void>(), host.staging->of(world_rank(peer))};
  auto memory = host.memory.resolve(world_rank(peer), address, like.bytes(), size_of(like.dtype));
  if (memory) return memory;
  end(Mismatch(
      fmt::format(
          "rank {} has let go of shared memory that rank {} passes to {}; keep what share() "
          "returns on every worker as long as anybody uses it",
          link().rank(), world_rank(peer), doing()),
      {link().rank(), world_rank(peer)}));
}

void Exchange::greet(int peer) {
  if (has_board()) return meet({});
  guarded(peer, [&] {
    greeted_.push_back(
        Ticket(link().send(world_rank(peer), setting_.greetings, own_.data(), own_.size()), peer));
  });
}

void Exchange::expect(int peer) {
  if (has_board()) return meet({});
  Greeting& greeting = expected_.emplace_back();
  greeting.peer = peer;
  guarded(peer, [&] {
    const bool cards_may_come = link().patience_in_call().has_value();
    greeting.transfer = link().recv(world_rank(peer), setting_.greetings, &greeting.card,
                                    cards_may_come ? sizeof(BoardCard) : kHeaderBytes);
  });
}

void Exchange::check(int peer) {
  const auto found = std::find_if(
      expected_.begin(), expected_.end(),
      [&](const Greeting& greeting) { return greeting.peer == peer && greeting.transfer; });
  if (found == expected_.end()) return;
  link().waits_for(world_rank(peer));
  const bool arrived = guarded(peer, [&] { return found->transfer->wait(deadline_); });
  if (!arrived) late(peer);
  found->transfer.reset();
  compare(peer, found->card.header);
}

void Exchange::compare(int peer, const HeaderBytes& bytes) {
  const auto theirs = decode_header(bytes);
  if (theirs == header_) return;
  end(Mismatch(
      fmt::format(
          "rank {} is in {}, but rank {} is in {}; every worker must make the same calls in the "
          "same order",
          link().rank(), doing(), world_rank(peer),
          theirs ? describe(*theirs) : "another version of Lockstep"),
      {link().rank(), world_rank(peer)}));
}

void Exchange::finish() {
  if (pinned_ && !met_) await_all();
  for (const Greeting& greeting : expected_) check(greeting.peer);
  wait_all(greeted_);
  greeted_.clear();
  if (at_end_) std::exchange(at_end_, nullptr)();
}

void Exchange::meet(std::span<const int> peers) {
  if (has_board()) {
    begin({});
    if (!met_) await_all();
    return;
  }
  for (const int peer : peers) expect(peer);
  for (const int peer : peers) greet(peer);
}

Exchange::Ticket Exchange::send(int peer, const void* data, std::size_t bytes, Stage stage) {
  if (bytes == 0) return {};
  return guarded(peer, [&] {
    return Ticket(link().send(world_rank(peer), payload(stage), data, bytes), peer);
  });
}

Exchange::Ticket Exchange::recv(int peer, void* data, std::size_t bytes, Stage stage) {
  if (bytes == 0) return {};
  return guarded(peer, [&] {
    return Ticket(link().recv(world_rank(peer), payload(stage), data, bytes), peer);
  });
}

void Exchange::wait(Ticket& ticket) {
  if (!ticket.transfer_) return;
  check(ticket.peer_);
  link().waits_for(world_rank(ticket.peer_));
  if (!guarded(ticket.peer_, [&] { return ticket.transfer_->wait(deadline_); })) {
    late(ticket.peer_);
  }
  ticket.transfer_.reset();
}

void Exchange::wait_all(std::span<Ticket> tickets) {
  for (Ticket& ticket : tickets) wait(ticket);
}

}  // namespace lockstep::comm

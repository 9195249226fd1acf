#include "comm/arena/arena_session.h"

#include <utility>

#include "base/bytes.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view kArenaPacket = "\4";

base::PairWorld world_of(const Party& party) {
  const std::string name =
      base::ByteWriter().put_text("arena").put_text(party.world).put_text(party.arena).take();
  return {name, party.secret, party.rank, party.size};
}

}  // namespace

Session Session::to(const Party& party, int peer, std::string nonce) {
  return {base::PairProof::caller(world_of(party), peer, std::move(nonce)), true};
}

Session Session::from_anyone(const Party& party, std::string nonce) {
  return {base::PairProof::listener(world_of(party), std::move(nonce)), false};
}

std::optional<Session::Reply> Session::receive(std::string_view packet) {
  switch (state_) {
    case State::kShaking:
      return take_proof(packet);
    case State::kProven:
      return take_arena(packet);
    case State::kDone:
    case State::kEnded:
      break;
  }
  return std::nullopt;
}

std::optional<Session::Reply> Session::take_proof(std::string_view packet) {
  if (packet.size() != proof_.wants()) return end("does not speak the language of this build");
  std::string reply = proof_.receive(packet);
  if (proof_.state() == base::PairProof::State::kEnded) return end(describe(proof_.ending()));
  if (proof_.state() == base::PairProof::State::kShaking) return Reply{std::move(reply)};
  state_ = State::kProven;
  proven_ = true;
  if (connects_) return Reply{std::string(kArenaPacket), true};
  return Reply{std::move(reply)};
}

std::optional<Session::Reply> Session::take_arena(std::string_view packet) {
  if (packet != kArenaPacket) return end("sent something else than its arena");
  state_ = State::kDone;
  if (connects_) return std::nullopt;
  return Reply{std::string(kArenaPacket), true};
}

std::optional<Session::Reply> Session::end(std::string why) {
  state_ = State::kEnded;
  why_ = std::move(why);
  return std::nullopt;
}

}  // namespace lockstep::comm

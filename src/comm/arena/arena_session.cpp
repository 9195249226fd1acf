#include "comm/arena/arena_session.h"

#include "base/bytes.h"
#include "base/check.h"

namespace lockstep::comm {
namespace {

constexpr std::uint32_t kMagic = 0x414b534c;  // "LSKA"
constexpr std::uint16_t kSessionVersion = 1;
constexpr std::string_view kConnectingLabel = "lockstep arena: proof of who connects";
constexpr std::string_view kListeningLabel = "lockstep arena: proof of who listens";

enum class Tag : std::uint8_t { kHello = 1, kChallenge = 2, kProof = 3, kArena = 4 };

base::ByteWriter begin_packet(Tag tag) {
  base::ByteWriter writer;
  writer.put(static_cast<std::uint8_t>(tag));
  return writer;
}

bool begins_with(base::ByteReader& reader, Tag tag) {
  return reader.get<std::uint8_t>() == static_cast<std::uint8_t>(tag);
}

}  // namespace

Session::Session(const Party& party, bool connects, int peer, std::string nonce)
    : party_(&party), connects_(connects), peer_(peer), nonce_(std::move(nonce)) {
  LOCKSTEP_CHECK(nonce_.size() == kSessionNonceBytes, "a nonce has its length");
}

Session Session::to(const Party& party, int peer, std::string nonce) {
  return {party, true, peer, std::move(nonce)};
}

Session Session::from_anyone(const Party& party, std::string nonce) {
  return {party, false, -1, std::move(nonce)};
}

std::string Session::hello() const {
  return begin_packet(Tag::kHello)
      .put(kMagic)
      .put(kSessionVersion)
      .put(static_cast<std::int32_t>(party_->rank))
      .put(static_cast<std::int32_t>(peer_))
      .put_raw(nonce_)
      .take();
}

std::optional<Session::Reply> Session::receive(std::string_view packet) {
  switch (state_) {
    case State::kShaking:
      if (!their_nonce_.empty()) return take_proof(packet);
      return connects_ ? take_challenge(packet) : take_hello(packet);
    case State::kProven:
      return take_arena(packet);
    case State::kDone:
    case State::kEnded:
      break;
  }
  return std::nullopt;
}

std::optional<Session::Reply> Session::take_hello(std::string_view packet) {
  base::ByteReader reader(packet);
  const bool ours = begins_with(reader, Tag::kHello) && reader.get<std::uint32_t>() == kMagic &&
                    reader.get<std::uint16_t>() == kSessionVersion;
  const auto from = reader.get<std::int32_t>();
  const auto to = reader.get<std::int32_t>();
  const auto nonce = reader.get_raw(kSessionNonceBytes);
  if (!ours || !reader.done()) return end("does not speak the language of this build");
  if (to != party_->rank || from <= to || from >= party_->size) {
    return end("has no business with this worker");
  }
  peer_ = from;
  their_nonce_ = nonce;
  return Reply{begin_packet(Tag::kChallenge).put_raw(nonce_).take()};
}

std::optional<Session::Reply> Session::take_challenge(std::string_view packet) {
  base::ByteReader reader(packet);
  const bool ours = begins_with(reader, Tag::kChallenge);
  const auto nonce = reader.get_raw(kSessionNonceBytes);
  if (!ours || !reader.done()) return end("does not speak the language of this build");
  their_nonce_ = nonce;
  return Reply{begin_packet(Tag::kProof).put_raw(digest(true)).take()};
}

std::optional<Session::Reply> Session::take_proof(std::string_view packet) {
  base::ByteReader reader(packet);
  const bool ours = begins_with(reader, Tag::kProof);
  const auto proof = reader.get_raw(base::kDigestBytes);
  if (!ours || !reader.done() || !base::equal_secrets(proof, digest(!connects_))) {
    return end("does not know the secret");
  }
  state_ = State::kProven;
  proven_ = true;
  if (connects_) return Reply{begin_packet(Tag::kArena).take(), true};
  return Reply{begin_packet(Tag::kProof).put_raw(digest(false)).take()};
}

std::optional<Session::Reply> Session::take_arena(std::string_view packet) {
  base::ByteReader reader(packet);
  if (!begins_with(reader, Tag::kArena) || !reader.done()) {
    return end("sent something else than its arena");
  }
  state_ = State::kDone;
  if (connects_) return std::nullopt;
  return Reply{begin_packet(Tag::kArena).take(), true};
}

std::optional<Session::Reply> Session::end(std::string why) {
  state_ = State::kEnded;
  why_ = std::move(why);
  return std::nullopt;
}

std::string Session::digest(bool of_who_connects) const {
  base::ByteWriter covered;
  covered.put_text(of_who_connects ? kConnectingLabel : kListeningLabel);
  covered.put(kSessionVersion).put_text(party_->world).put_text(party_->arena);
  covered.put(static_cast<std::int32_t>(connects_ ? party_->rank : peer_));
  covered.put(static_cast<std::int32_t>(connects_ ? peer_ : party_->rank));
  covered.put_raw(connects_ ? nonce_ : their_nonce_).put_raw(connects_ ? their_nonce_ : nonce_);
  return base::hmac_sha256(party_->secret, covered.bytes());
}

}  // namespace lockstep::comm

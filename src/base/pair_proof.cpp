#include "base/pair_proof.h"

#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"

namespace lockstep::base {
namespace {

constexpr std::uint64_t kPairMark = 0x7069727473636f4c;
constexpr std::uint16_t kPairVersion = 1;
constexpr std::size_t kHelloBytes = 8 + 2 + 4 + 4 + PairProof::kNonceBytes;
constexpr std::size_t kAnswerBytes = 1 + PairProof::kNonceBytes;

enum Answer : std::uint8_t { kGo = 1, kVersionDiffers = 2 };

}  // namespace

const char* describe(PairProof::Ending ending) noexcept {
  switch (ending) {
    case PairProof::Ending::kNone:
      return "is fine";
    case PairProof::Ending::kNotOurs:
      return "is no worker of this world";
    case PairProof::Ending::kOtherVersion:
      return "is of another Lockstep version";
    case PairProof::Ending::kNoSecret:
      return "does not know the secret";
  }
  return "failed";
}

PairProof::PairProof(PairWorld world, bool calls, int peer, std::string nonce)
    : world_(std::move(world)), calls_(calls), peer_(peer), nonce_(std::move(nonce)) {
  LOCKSTEP_CHECK(nonce_.size() == kNonceBytes, "a nonce has its length");
}

PairProof PairProof::caller(PairWorld world, int to, std::string nonce) {
  return {std::move(world), true, to, std::move(nonce)};
}

PairProof PairProof::listener(PairWorld world, std::string nonce) {
  return {std::move(world), false, -1, std::move(nonce)};
}

std::string PairProof::start() const {
  if (!calls_) return {};
  ByteWriter writer;
  writer.put(kPairMark).put(kPairVersion).put(std::int32_t{world_.rank}).put(std::int32_t{peer_});
  return writer.put_raw(nonce_).take();
}

std::size_t PairProof::wants() const {
  if (state_ != State::kShaking) return 0;
  if (!theirs_.empty()) return kDigestBytes;
  return calls_ ? kAnswerBytes : kHelloBytes;
}

std::string PairProof::receive(std::string_view bytes) {
  LOCKSTEP_CHECK(bytes.size() == wants(), "a proof takes what it wants");
  if (!theirs_.empty()) return take_proof(bytes);
  return calls_ ? take_answer(bytes) : take_hello(bytes);
}

std::string PairProof::take_hello(std::string_view bytes) {
  ByteReader reader(bytes);
  if (reader.get<std::uint64_t>() != kPairMark) return end(Ending::kNotOurs);
  if (reader.get<std::uint16_t>() != kPairVersion) {
    end(Ending::kOtherVersion);
    return ByteWriter()
        .put(std::uint8_t{kVersionDiffers})
        .put_raw(std::string(kNonceBytes, '\0'))
        .take();
  }
  peer_ = reader.get<std::int32_t>();
  const int to = reader.get<std::int32_t>();
  if (to != world_.rank || peer_ <= world_.rank || peer_ >= world_.size)
    return end(Ending::kNotOurs);
  theirs_ = reader.get_raw(kNonceBytes);
  return ByteWriter().put(std::uint8_t{kGo}).put_raw(nonce_).take();
}

std::string PairProof::take_answer(std::string_view bytes) {
  ByteReader reader(bytes);
  const auto answer = reader.get<std::uint8_t>();
  if (answer == kVersionDiffers) return end(Ending::kOtherVersion);
  if (answer != kGo) return end(Ending::kNotOurs);
  theirs_ = reader.get_raw(kNonceBytes);
  return digest("caller");
}

std::string PairProof::take_proof(std::string_view bytes) {
  if (!equal_secrets(bytes, digest(calls_ ? "listener" : "caller"))) return end(Ending::kNoSecret);
  state_ = State::kOpen;
  return calls_ ? std::string() : digest("listener");
}

std::string PairProof::digest(std::string_view label) const {
  ByteWriter writer;
  writer.put_text("lockstep pair").put_text(label).put_text(world_.name).put(kPairVersion);
  writer.put(std::int32_t{calls_ ? world_.rank : peer_});
  writer.put(std::int32_t{calls_ ? peer_ : world_.rank});
  writer.put_raw(calls_ ? nonce_ : theirs_).put_raw(calls_ ? theirs_ : nonce_);
  return hmac_sha256(world_.secret, writer.bytes());
}

PairKeys PairProof::keys() const {
  LOCKSTEP_CHECK(state_ == State::kOpen, "keys come after the proof");
  return {digest("tags to the listener"), digest("tags to the caller")};
}

std::string PairProof::end(Ending why) {
  state_ = State::kEnded;
  ending_ = why;
  return {};
}

}  // namespace lockstep::base

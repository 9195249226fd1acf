#include "control/rendezvous/handshake.h"

#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace lockstep::control {
namespace {

constexpr std::string_view kWorkerLabel = "lockstep rendezvous: proof of a worker";
constexpr std::string_view kRendezvousLabel = "lockstep rendezvous: proof of the rendezvous";
constexpr std::string_view kSessionLabel = "lockstep rendezvous: key of a session";
constexpr std::string_view kGenerationLabel = "lockstep: secret of a generation";

// A key has one length, whatever the length of the secret. An empty secret (Unix sockets) gives a key, too.
std::string key_of(std::string_view secret) {
  return base::hmac_sha256("lockstep job secret", secret);
}

}  // namespace

const char* describe(Ending ending) noexcept {
  switch (ending) {
    case Ending::kNone:
      return "is fine";
    case Ending::kNotOurs:
      return "does not speak the language of a rendezvous";
    case Ending::kOtherVersion:
      return "is of another Lockstep version";
    case Ending::kNoSecret:
      return "does not know the job's secret";
    case Ending::kRefusedSecret:
      return "has another secret";
    case Ending::kBrokenFrame:
      return "sent a frame that is not genuine";
  }
  return "failed";
}

Handshake::Handshake(Role role, std::string_view secret, std::string nonce)
    : role_(role), key_(key_of(secret)), nonce_(std::move(nonce)) {
  LOCKSTEP_CHECK(nonce_.size() == kNonceBytes, "a nonce has its length");
}

std::string Handshake::start() const {
  return role_ == Role::kWorker ? encode(Hello{kProtocolVersion, nonce_}) : std::string();
}

std::string Handshake::receive(std::string_view& input) {
  std::string output;
  while (state_ == State::kShaking && !input.empty()) {
    const std::size_t bytes = bytes_of_next(input.front());
    if (state_ == State::kEnded || input.size() < bytes) break;
    output += take(input.substr(0, bytes));
    input.remove_prefix(bytes);
  }
  return output;
}

bool Handshake::may_send_frames() const {
  return state_ == State::kOpen ||
         (state_ == State::kShaking && role_ == Role::kWorker && !transcript_.empty());
}

std::string Handshake::session_key() const {
  LOCKSTEP_CHECK(!transcript_.empty(), "a session has a key when both nonces are known");
  return digest(kSessionLabel);
}

std::size_t Handshake::bytes_of_next(char first) {
  if (role_ == Role::kRendezvous) return transcript_.empty() ? kHelloBytes : kProofMessageBytes;
  const auto bytes = handshake_reply_bytes(first);
  if (!bytes) end(Ending::kNotOurs);
  return bytes.value_or(0);
}

std::string Handshake::take(std::string_view message) {
  if (role_ == Role::kRendezvous) {
    return transcript_.empty() ? take_hello(message) : take_proof(message);
  }
  if (const auto refusal = decode_refusal(message)) return take_refusal(*refusal);
  return transcript_.empty() ? take_challenge(message) : take_proof(message);
}

std::string Handshake::take_hello(std::string_view message) {
  const auto hello = decode_hello(message);
  if (!hello) return refuse(RefusalReason::kNoHello, Ending::kNotOurs);
  peer_version_ = hello->version;
  if (hello->version != kProtocolVersion) {
    return refuse(RefusalReason::kVersion, Ending::kOtherVersion);
  }
  set_transcript(hello->nonce, nonce_);
  return encode(Challenge{kProtocolVersion, nonce_});
}

std::string Handshake::take_challenge(std::string_view message) {
  const auto challenge = decode_challenge(message);
  if (!challenge) {
    end(Ending::kNotOurs);
    return {};
  }
  peer_version_ = challenge->version;
  if (challenge->version != kProtocolVersion) {
    end(Ending::kOtherVersion);
    return {};
  }
  set_transcript(nonce_, challenge->nonce);
  return encode(Proof{digest(kWorkerLabel)});
}

std::string Handshake::take_proof(std::string_view message) {
  const bool judge = role_ == Role::kRendezvous;
  const auto proof = decode_proof(message);
  const std::string expected = digest(judge ? kWorkerLabel : kRendezvousLabel);
  if (!proof || !base::equal_secrets(proof->digest, expected)) {
    if (judge) return refuse(RefusalReason::kSecret, Ending::kNoSecret);
    end(Ending::kNoSecret);
    return {};
  }
  state_ = State::kOpen;
  return judge ? encode(Proof{digest(kRendezvousLabel)}) : std::string();
}

std::string Handshake::take_refusal(const Refusal& refusal) {
  peer_version_ = refusal.version;
  switch (refusal.reason) {
    case RefusalReason::kVersion:
      end(Ending::kOtherVersion);
      break;
    case RefusalReason::kSecret:
      end(Ending::kRefusedSecret);
      break;
    case RefusalReason::kNoHello:
      end(Ending::kNotOurs);
      break;
  }
  return {};
}

void Handshake::set_transcript(std::string_view worker_nonce, std::string_view rendezvous_nonce) {
  transcript_ = base::ByteWriter()
                    .put(kProtocolVersion)
                    .put_raw(worker_nonce)
                    .put_raw(rendezvous_nonce)
                    .take();
}

std::string Handshake::digest(std::string_view label) const {
  return base::hmac_sha256(key_, base::ByteWriter().put_text(label).put_raw(transcript_).bytes());
}

void Handshake::end(Ending why) {
  state_ = State::kEnded;
  ending_ = why;
}

std::string Handshake::refuse(RefusalReason reason, Ending why) {
  end(why);
  return encode(Refusal{reason, kProtocolVersion});
}

std::string generation_secret(std::string_view job_secret, std::string_view name,
                              std::string_view salt) {
  const std::string covered =
      base::ByteWriter().put_text(kGenerationLabel).put_text(name).put_text(salt).take();
  return base::hmac_sha256(key_of(job_secret), covered);
}

Session::Session(Handshake handshake)
    : handshake_(std::move(handshake)), output_(handshake_.start()) {}

void Session::receive(std::string_view bytes) {
  if (ending_ != Ending::kNone) return;
  if (opener_) {
    opener_->push(bytes);
  } else {
    shake(bytes);
  }
}

void Session::shake(std::string_view bytes) {
  input_.append(bytes);
  std::string_view rest = input_;
  output_ += handshake_.receive(rest);
  ending_ = handshake_.ending();
  if (handshake_.may_send_frames()) start_sending();
  if (handshake_.state() == Handshake::State::kOpen) {
    const bool worker = handshake_.role() == Role::kWorker;
    opener_.emplace(handshake_.session_key(), worker ? Direction::kToClient : Direction::kToServer);
    opener_->push(rest);
    rest = {};
  }
  input_ = std::string(ending_ == Ending::kNone ? rest : std::string_view());
}

void Session::start_sending() {
  if (sealer_) return;
  const bool worker = handshake_.role() == Role::kWorker;
  sealer_.emplace(handshake_.session_key(), worker ? Direction::kToServer : Direction::kToClient);
  for (const std::string& payload : early_) output_ += sealer_->seal(payload);
  early_.clear();
}

std::optional<Message> Session::next() {
  if (!opener_ || ending_ != Ending::kNone) return std::nullopt;
  const auto payload = opener_->next();
  if (opener_->broken()) ending_ = Ending::kBrokenFrame;
  if (!payload) return std::nullopt;
  auto message = decode_message(*payload);
  if (!message) ending_ = Ending::kNotOurs;
  return message;
}

void Session::send(const Message& message) {
  if (sealer_) {
    output_ += sealer_->seal(encode(message));
  } else {
    early_.push_back(encode(message));
  }
}

std::string Session::take_output() {
  return std::exchange(output_, {});
}

}  // namespace lockstep::control

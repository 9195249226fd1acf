// How the two ends of a new connection prove to each other that they are workers of one world,
// before any other byte is read. The worker of the higher rank connects and proves first.
//
//   caller   → hello    mark, version, its rank, the other's rank, nonce
//   listener → answer   kGo and a nonce; or why not
//   caller   → proof    HMAC-SHA256(secret, "caller", transcript)
//   listener → proof    HMAC-SHA256(secret, "listener", transcript), only after a good one
//
// The transcript is the name, both ranks and both nonces. A recorded proof fits no other
// nonces. A proof that is sent back has the wrong label. A stranger that merely connects learns no
// digest of the secret to guess against.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/hash.h"

namespace lockstep::base {

// The world that both ends must know, and this worker's place in it.
struct PairWorld {
  std::string name;  // of the world, and of what the connection is for
  std::string secret;
  int rank = 0;
  int size = 0;
};

// The keys of the tags in each direction.
struct PairKeys {
  std::string to_listener;
  std::string to_caller;
};

// One end as a state machine: bytes in, bytes out. So it can be tested and fuzzed without sockets.
//
// Threads:   one caller at a time.
// Blocking:  never; there is nothing to wait for.
// Failure:   none thrown: a proof that went wrong is kEnded and says why.
// Ownership: values only.
class PairProof {
 public:
  static constexpr std::size_t kNonceBytes = 32;
  enum class State : std::uint8_t { kShaking, kOpen, kEnded };
  enum class Ending : std::uint8_t { kNone, kNotOurs, kOtherVersion, kNoSecret };

  static PairProof caller(PairWorld world, int to, std::string nonce = random_bytes(kNonceBytes));
  static PairProof listener(PairWorld world, std::string nonce = random_bytes(kNonceBytes));

  // What to send before anything has arrived; a listener is silent.
  std::string start() const;
  // How many bytes it wants next. It never wants more, so that bytes that come after the proof stay
  // in the socket.
  std::size_t wants() const;
  // Takes exactly as many as it wants. Returns what to send.
  std::string receive(std::string_view bytes);

  State state() const { return state_; }
  // A caller: has been answered, and has sent its proof. A listener: has heard a hello.
  bool answered() const { return !theirs_.empty(); }
  Ending ending() const { return ending_; }
  int peer() const { return peer_; }  // the rank that it says; proven when open; -1: unknown
  PairKeys keys() const;              // when open

 private:
  PairProof(PairWorld world, bool calls, int peer, std::string nonce);

  std::string take_hello(std::string_view bytes);
  std::string take_answer(std::string_view bytes);
  std::string take_proof(std::string_view bytes);
  std::string digest(std::string_view label) const;
  std::string end(Ending why);

  PairWorld world_;
  bool calls_;
  int peer_;
  State state_ = State::kShaking;
  Ending ending_ = Ending::kNone;
  std::string nonce_;
  std::string theirs_;  // empty until hello or answer has come
};

const char* describe(PairProof::Ending ending) noexcept;

}  // namespace lockstep::base

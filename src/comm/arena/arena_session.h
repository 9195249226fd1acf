// One end of one connection between two workers of a host, which hand their arenas to each other.
//
//   who connects (the higher rank)       who listens
//   Hello  ─────────────────────────────▶             ranks and a nonce
//          ◀─────────────────────────────  Challenge   a nonce
//   Proof  ─────────────────────────────▶             HMAC over label, names, ranks and nonces
//          ◀─────────────────────────────  Proof       with another label; only after a good one
//   Arena  ─────────────────────────────▶             the first descriptor, to a proven peer
//          ◀─────────────────────────────  Arena       the first one has been mapped
//
// A recorded proof fits no other pair of nonces, a proof sent back to its maker has the wrong label,
// and who merely connects learns no digest of the secret to guess against.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/hash.h"

namespace lockstep::comm {

inline constexpr std::size_t kSessionNonceBytes = 32;
inline constexpr std::size_t kMostPacketBytes = 64;

// What the workers agree on, and which of them this is.
struct Party {
  std::string secret;
  std::string world;
  std::string arena;
  int rank = 0;
  int size = 0;
};

// Packets in, packets out; descriptors are the caller's.
//
// Threads:   one caller at a time.
// Blocking:  never; there is nothing to wait for.
// Failure:   none thrown: a session that went wrong is kEnded and says why.
// Ownership: borrows the party.
class Session {
 public:
  enum class State : std::uint8_t { kShaking, kProven, kDone, kEnded };

  struct Reply {
    std::string packet;
    bool with_arena = false;  // this worker's descriptor travels with it
  };

  // Connects to `peer`, a lower rank.
  static Session to(const Party& party, int peer,
                    std::string nonce = base::random_bytes(kSessionNonceBytes));
  // Listens to whoever has connected.
  static Session from_anyone(const Party& party,
                             std::string nonce = base::random_bytes(kSessionNonceBytes));

  // What who connects sends first.
  std::string hello() const;

  // Takes a packet; the answer, if there is one.
  std::optional<Reply> receive(std::string_view packet);

  State state() const { return state_; }
  // The other side has proven the secret, whatever came after.
  bool proven() const { return proven_; }
  // The next packet brings the peer's descriptor. Map it first: the answer says that it is mapped.
  bool expects_arena() const { return state_ == State::kProven; }
  bool connects() const { return connects_; }
  // Who the other side is, or says it is until it is proven; -1 when it has said nothing.
  int peer() const { return peer_; }
  // As a phrase about the other side: "does not know the secret".
  const std::string& why() const { return why_; }

 private:
  Session(const Party& party, bool connects, int peer, std::string nonce);

  std::optional<Reply> take_hello(std::string_view packet);
  std::optional<Reply> take_challenge(std::string_view packet);
  std::optional<Reply> take_proof(std::string_view packet);
  std::optional<Reply> take_arena(std::string_view packet);
  std::optional<Reply> end(std::string why);
  std::string digest(bool of_who_connects) const;

  const Party* party_;
  bool connects_;
  State state_ = State::kShaking;
  bool proven_ = false;
  int peer_;
  std::string nonce_;
  std::string their_nonce_;  // empty until hello or challenge was taken
  std::string why_;
};

}  // namespace lockstep::comm

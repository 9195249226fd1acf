// One end of one connection between two workers of a host, which hand their arenas to each other.
//
//   connects (the higher rank)           listens
//   Hello  ─────────────────────────────▶             ranks and a nonce
//          ◀─────────────────────────────  Challenge   a nonce
//   Proof  ─────────────────────────────▶             HMAC over label, names, ranks and nonces
//          ◀─────────────────────────────  Proof       with another label; only after a good one
//   Arena  ─────────────────────────────▶             the first descriptor, to a proven peer
//          ◀─────────────────────────────  Arena       the first one has been mapped
//
// A recorded proof does not fit another pair of nonces. A proof that is sent back to its maker has
// the wrong label. The side that connects proves first, so a stranger that only connects gets no
// hash of the secret that it could test guesses against.
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

// The protocol alone: packets come in, packets go out. The caller sends and receives them, and the
// descriptors.
//
// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   throws nothing. A session that failed is kEnded, and why() says why.
// Ownership: borrows the party.
class Session {
 public:
  enum class State : std::uint8_t { kShaking, kProven, kDone, kEnded };

  struct Reply {
    std::string packet;
    bool with_arena = false;  // send this worker's descriptor with it
  };

  // Connects to `peer`, a lower rank.
  static Session to(const Party& party, int peer,
                    std::string nonce = base::random_bytes(kSessionNonceBytes));
  // Listens to a process that has connected.
  static Session from_anyone(const Party& party,
                             std::string nonce = base::random_bytes(kSessionNonceBytes));

  // The first packet, sent by the side that connects.
  std::string hello() const;

  // Takes a packet. Returns the answer, if there is one.
  std::optional<Reply> receive(std::string_view packet);

  State state() const { return state_; }
  // The other side has proven the secret. Stays true, whatever happens later.
  bool proven() const { return proven_; }
  // The next packet brings the peer's descriptor. Map it before receive(): the answer says that it
  // is mapped.
  bool expects_arena() const { return state_ == State::kProven; }
  bool connects() const { return connects_; }
  // The rank of the other side; before the proof, the rank that it claims. -1 if it has said
  // nothing.
  int peer() const { return peer_; }
  // What was wrong with the other side, such as "does not know the secret".
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

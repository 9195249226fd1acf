// One end of one connection between two workers of a host, which hand their arenas to each other.
//
//   connects (the higher rank)           listens
//   the proof of the secret ◀───────────▶             base/pair_proof.h
//   Arena  ─────────────────────────────▶             the first descriptor, to a proven peer
//          ◀─────────────────────────────  Arena       the first one has been mapped
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/pair_proof.h"

namespace lockstep::comm {

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
// Ownership: values only.
class Session {
 public:
  enum class State : std::uint8_t { kShaking, kProven, kDone, kEnded };

  struct Reply {
    std::string packet;
    bool with_arena = false;  // send this worker's descriptor with it
  };

  // Connects to `peer`, a lower rank.
  static Session to(const Party& party, int peer,
                    std::string nonce = base::random_bytes(base::PairProof::kNonceBytes));
  // Listens to a process that has connected.
  static Session from_anyone(const Party& party,
                             std::string nonce = base::random_bytes(base::PairProof::kNonceBytes));

  // The first packet, sent by the side that connects.
  std::string hello() const { return proof_.start(); }

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
  int peer() const { return proof_.peer(); }
  // What was wrong with the other side, such as "does not know the secret".
  const std::string& why() const { return why_; }

 private:
  Session(base::PairProof proof, bool connects) : proof_(std::move(proof)), connects_(connects) {}

  std::optional<Reply> take_proof(std::string_view packet);
  std::optional<Reply> take_arena(std::string_view packet);
  std::optional<Reply> end(std::string why);

  base::PairProof proof_;
  bool connects_;
  State state_ = State::kShaking;
  bool proven_ = false;
  std::string why_;
};

}  // namespace lockstep::comm

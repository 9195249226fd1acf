// What workers and the rendezvous say to each other, as bytes. Pure. The bytes may come from a
// stranger: a decoder allocates no more than they hold, and gives nothing for what is not a message.
//
//   worker                         rendezvous
//   Hello  ───────────────────────▶            version and a nonce
//          ◀───────────────────────  Challenge  version and a nonce        (or Refusal)
//   Proof, Join ──────────────────▶            the first frame follows at once
//          ◀───────────────────────  Proof      at once
//          ◀───────────────────────  Welcome    when every rank has joined  (or Failed)
//   Put, Get ─────────────────────▶
//          ◀───────────────────────  Stored, Value                        (or Failed)
//   Done   ───────────────────────▶
//          ◀───────────────────────  Finished   when every rank is done     (or Failed)
//
// Hello to Proof are of fixed size; everything after them is a frame (frame.h).
#pragma once

#include <lockstep/errors.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "control/rendezvous/node_message.h"

namespace lockstep::control {

inline constexpr std::uint16_t kProtocolVersion = 4;
inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kProofBytes = 32;

struct Hello {
  std::uint16_t version = kProtocolVersion;
  std::string nonce;
};
struct Challenge {
  std::uint16_t version = kProtocolVersion;
  std::string nonce;
};
struct Proof {
  std::string digest;
};
enum class RefusalReason : std::uint8_t { kVersion = 1, kSecret = 2, kNoHello = 3 };
struct Refusal {
  RefusalReason reason = RefusalReason::kVersion;
  std::uint16_t version = kProtocolVersion;
};

inline constexpr std::size_t kHelloBytes = 4 + 2 + kNonceBytes;
inline constexpr std::size_t kChallengeBytes = 1 + 2 + kNonceBytes;
inline constexpr std::size_t kProofMessageBytes = 1 + kProofBytes;
inline constexpr std::size_t kRefusalBytes = 1 + 1 + 2;

std::string encode(const Hello& hello);
std::string encode(const Challenge& challenge);
std::string encode(const Proof& proof);
std::string encode(const Refusal& refusal);

// Each takes exactly its number of bytes.
std::optional<Hello> decode_hello(std::string_view bytes);
std::optional<Challenge> decode_challenge(std::string_view bytes);
std::optional<Proof> decode_proof(std::string_view bytes);
std::optional<Refusal> decode_refusal(std::string_view bytes);

// The length of a handshake message of the rendezvous, by its first byte. Nothing if it is no such message.
std::optional<std::size_t> handshake_reply_bytes(char first);

using ConnectionId = std::uint64_t;  // as a Door numbers its connections

inline constexpr std::size_t kMostFrameBytes = 1 << 20;
inline constexpr std::size_t kMostKeyBytes = 1024;
inline constexpr std::size_t kMostValueBytes = kMostFrameBytes - 2 * kMostKeyBytes;
inline constexpr std::size_t kMostTextBytes = 4096;
inline constexpr std::size_t kMostRanks = 1 << 16;
inline constexpr std::size_t kMostNodes = 1 << 12;
inline constexpr std::size_t kMostWords = 1 << 12;

// An answer has the `id` of its request. So a client that has given up a request knows a late answer.

// A worker presents itself. All workers must agree on size, build and engine.
struct Join {
  std::uint32_t id = 0;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  std::uint32_t wait_ms = 0;     // the time for an answer
  std::uint32_t timeout_ms = 0;  // what the user allowed; wait_ms is what is left of it
  std::string build;
  std::string engine;
  std::string host;
  std::uint32_t pid = 0;
  bool in_batch = false;  // as Candidate::in_batch, if workers may leave and join

  bool operator==(const Join&) const = default;
};
struct Put {
  std::uint32_t id = 0;
  std::string key;
  std::string value;

  bool operator==(const Put&) const = default;
};
struct Get {
  std::uint32_t id = 0;
  std::uint32_t wait_ms = 0;
  std::string key;

  bool operator==(const Get&) const = default;
};
// This worker has connected to all others.
struct Done {
  std::uint32_t id = 0;
  std::uint32_t wait_ms = 0;

  bool operator==(const Done&) const = default;
};
// This worker could not connect, and why; it leaves.
struct GiveUp {
  std::string why;

  bool operator==(const GiveUp&) const = default;
};

// Everybody is here.
struct Welcome {
  std::uint32_t id = 0;
  std::uint64_t generation = 0;
  std::string name;
  std::string salt;
  std::uint32_t rank = 0;   // of the worker that is welcomed
  std::vector<int> places;  // by rank: as which rank each worker joined
  // In an elastic job: so many of the first ranks were in the generation before. Else 0.
  std::uint32_t survivors = 0;
  bool restarted =
      false;  // no worker has survived: the job begins again, from its checkpoint if it has one

  bool operator==(const Welcome&) const = default;
};
struct Stored {
  std::uint32_t id = 0;

  bool operator==(const Stored&) const = default;
};
struct Value {
  std::uint32_t id = 0;
  std::string value;

  bool operator==(const Value&) const = default;
};
// Everybody is done.
struct Finished {
  std::uint32_t id = 0;

  bool operator==(const Finished&) const = default;
};
// The request failed: what the worker throws.
struct Failed {
  std::uint32_t id = 0;
  ErrorKind kind = ErrorKind::kTimeout;
  std::string message;
  std::vector<int> ranks;

  bool operator==(const Failed&) const = default;
};
// The rendezvous closes in good order; a worker that still wants to join looks for the next one.
struct Closing {
  bool operator==(const Closing&) const = default;
};

using Message =
    std::variant<Join, Put, Get, Done, GiveUp, Welcome, Stored, Value, Finished, Failed, Closing,
                 NodeJoin, NodeStart, NodeEvent, NodeOrders, NodeVerdict, Beat>;

// A text for people that is too long is cut. A key or value that is too long is a bug: the caller checks them.
std::string encode(const Message& message);
std::optional<Message> decode_message(std::string_view bytes);

}  // namespace lockstep::control

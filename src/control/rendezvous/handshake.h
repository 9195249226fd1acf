// The mutual proof of the job's secret: each side learns that the other knows it, nobody sees it.
//
//   transcript           version, nonce of the worker, nonce of the rendezvous (fresh, 32 bytes each)
//   worker's proof       HMAC-SHA256(secret key, "worker", transcript)            sent first
//   rendezvous's proof   HMAC-SHA256(secret key, "rendezvous", transcript)        only after a good one
//   session key          HMAC-SHA256(secret key, "session", transcript)           for the frames that follow
//
// A recorded proof fits no other pair of nonces, and a proof sent back to its maker has the wrong
// label. The worker proves first, so a stranger that merely connects learns no digest of the secret
// to guess against.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "control/rendezvous/frame.h"
#include "control/rendezvous/message.h"

namespace lockstep::control {

enum class Role : std::uint8_t { kWorker, kRendezvous };

// Why a handshake, or the session after it, ended.
enum class Ending : std::uint8_t {
  kNone,
  kNotOurs,        // the other side speaks another protocol
  kOtherVersion,   // the other side is another build
  kNoSecret,       // the other side does not know the secret
  kRefusedSecret,  // the other side says that we do not
  kBrokenFrame,    // a frame was altered, repeated or lost
};

// A phrase about the other side, such as "does not know the job's secret".
const char* describe(Ending ending) noexcept;

// One side of the proof as a state machine: bytes in, bytes out. So it can be tested and fuzzed without sockets.
//
// Threads:   one caller at a time.
// Blocking:  never; there is nothing to wait for.
// Failure:   none thrown: a handshake that went wrong is kEnded and says why.
// Ownership: values only.
class Handshake {
 public:
  enum class State : std::uint8_t { kShaking, kOpen, kEnded };

  Handshake(Role role, std::string_view secret,
            std::string nonce = base::random_bytes(kNonceBytes));

  // What to send before anything has arrived: the worker's hello; the rendezvous is silent.
  std::string start() const;

  // Takes whole messages off the front of `input` and returns what to send. Stops when it is open:
  // the rest of `input` is frames.
  std::string receive(std::string_view& input);

  Role role() const { return role_; }
  State state() const { return state_; }
  Ending ending() const { return ending_; }
  std::uint16_t peer_version() const { return peer_version_; }

  // A worker can make frames as soon as it has sent its proof; the rendezvous when it is open.
  bool may_send_frames() const;
  std::string session_key() const;

 private:
  std::size_t bytes_of_next(char first);
  std::string take(std::string_view message);
  std::string take_hello(std::string_view message);
  std::string take_challenge(std::string_view message);
  std::string take_proof(std::string_view message);
  std::string take_refusal(const Refusal& refusal);

  void set_transcript(std::string_view worker_nonce, std::string_view rendezvous_nonce);
  std::string digest(std::string_view label) const;
  void end(Ending why);
  std::string refuse(RefusalReason reason, Ending why);

  Role role_;
  State state_ = State::kShaking;
  Ending ending_ = Ending::kNone;
  std::uint16_t peer_version_ = 0;
  std::string key_;
  std::string nonce_;
  std::string transcript_;  // empty until hello or challenge was taken
};

// One connection between a worker and the rendezvous without the socket: the handshake, then frames.
//
// Threads:   one caller at a time.
// Blocking:  never; there is nothing to wait for.
// Failure:   none thrown: a session that went wrong has an ending() and stays silent.
// Ownership: values only. Before the other side has proved the secret it holds less than one
//            handshake message; afterwards at most one frame of the largest size and what
//            receive() brought.
class Session {
 public:
  explicit Session(Handshake handshake);

  // Takes what arrived.
  void receive(std::string_view bytes);

  // The next message that arrived whole and genuine; bytes that are no message end the session.
  std::optional<Message> next();

  // Queues a message. A worker may do so before the handshake is over: the message leaves together
  // with the proof, which saves a round trip.
  void send(const Message& message);

  // What is to be written to the other side now.
  std::string take_output();

  bool open() const { return opener_.has_value(); }
  Ending ending() const { return ending_; }
  std::uint16_t peer_version() const { return handshake_.peer_version(); }

 private:
  void shake(std::string_view bytes);
  void start_sending();

  Handshake handshake_;
  Ending ending_ = Ending::kNone;
  std::string input_;
  std::string output_;
  std::vector<std::string> early_;  // messages queued before there was a key
  std::optional<FrameSealer> sealer_;
  std::optional<FrameOpener> opener_;
};

// A secret of one generation, for the proofs that workers show each other. Workers of an earlier
// generation do not know it.
std::string generation_secret(std::string_view job_secret, std::string_view name,
                              std::string_view salt);

}  // namespace lockstep::control

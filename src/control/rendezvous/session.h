// One connection between a worker and the rendezvous without the socket: the handshake, then
// frames.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "control/rendezvous/frame.h"
#include "control/rendezvous/handshake.h"

namespace lockstep::control {

// Threads:   one caller at a time.
// Blocking:  never; there is nothing to wait for.
// Failure:   none thrown: a session that went wrong has an ending() and stays silent.
// Ownership: values only. Before the other side has proved the secret it holds less than one
//            handshake message; afterwards at most one frame of the largest size and what
//            receive() brought.
class Session {
 public:
  Session(Role role, Handshake handshake);

  // Takes what arrived.
  void receive(std::string_view bytes);

  // The next message that arrived whole and genuine; bytes that are no message end the session.
  std::optional<Message> next();

  // Queues a message. A worker's first may be queued at any time: it leaves together with the
  // proof.
  void send(const Message& message);

  // What is to be written to the other side now.
  std::string take_output();

  bool open() const { return opener_.has_value(); }
  Ending ending() const { return ending_; }
  std::uint16_t peer_version() const { return handshake_.peer_version(); }

 private:
  void shake(std::string_view bytes);
  void start_sending();

  Role role_;
  Handshake handshake_;
  Ending ending_ = Ending::kNone;
  std::string input_;
  std::string output_;
  std::vector<std::string> early_;  // messages queued before there was a key
  std::optional<FrameSealer> sealer_;
  std::optional<FrameOpener> opener_;
};

}  // namespace lockstep::control

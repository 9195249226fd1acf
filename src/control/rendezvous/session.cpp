#include "control/rendezvous/session.h"

#include <utility>

namespace lockstep::control {

Session::Session(Role role, Handshake handshake)
    : role_(role), handshake_(std::move(handshake)), output_(handshake_.start()) {}

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
    const bool worker = role_ == Role::kWorker;
    opener_.emplace(handshake_.session_key(), worker ? Direction::kToClient : Direction::kToServer);
    opener_->push(rest);
    rest = {};
  }
  input_ = std::string(ending_ == Ending::kNone ? rest : std::string_view());
}

void Session::start_sending() {
  if (sealer_) return;
  const bool worker = role_ == Role::kWorker;
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

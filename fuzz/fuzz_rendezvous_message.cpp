// Messages and handshake messages of strangers: what decodes must encode to the same bytes.
#include "control/rendezvous/message.h"
#include "fuzz.h"

using lockstep::control::decode_message;
using lockstep::control::Message;
using lockstep::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::control;
  const std::string_view bytes = lockstep::fuzz::as_text(data, size);
  if (const auto message = decode_message(bytes)) {
    require(decode_message(encode(*message)) == message, "a message survives encode and decode");
  }
  if (const auto hello = decode_hello(bytes)) require(encode(*hello) == bytes, "hello");
  if (const auto challenge = decode_challenge(bytes))
    require(encode(*challenge) == bytes, "challenge");
  if (const auto proof = decode_proof(bytes)) require(encode(*proof) == bytes, "proof");
  if (const auto refusal = decode_refusal(bytes)) require(encode(*refusal) == bytes, "refusal");
  return 0;
}

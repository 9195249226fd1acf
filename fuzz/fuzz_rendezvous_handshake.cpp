// Both sides of the handshake against a stranger that does not know the secret: whatever it sends,
// no session opens. Its first byte chooses the side, the second how many bytes come at once, the
// third how much of a genuine conversation comes before its own bytes.
#include <algorithm>

#include "base/bytes.h"
#include "control/rendezvous/handshake.h"
#include "fuzz.h"

using lockstep::control::Ending;
using lockstep::control::Handshake;
using lockstep::control::Join;
using lockstep::control::kNonceBytes;
using lockstep::control::Role;
using lockstep::control::Session;
using lockstep::fuzz::require;

namespace {

Session make(Role role, std::string_view secret) {
  const char fill = role == Role::kWorker ? 'w' : 'r';
  Session session(Handshake(role, secret, std::string(kNonceBytes, fill)));
  if (role == Role::kWorker) session.send(Join{});
  return session;
}

// Lets the target talk to a genuine partner for a while, so that later states are reached too.
bool prepare(Session& target, Role role, int rounds) {
  const Role other = role == Role::kWorker ? Role::kRendezvous : Role::kWorker;
  Session partner = make(other, "the secret");
  for (int i = 0; i < rounds; ++i) {
    partner.receive(target.take_output());
    target.receive(partner.take_output());
  }
  return target.open();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::base::ByteReader input(lockstep::fuzz::as_text(data, size));
  const Role role = input.get<std::uint8_t>() % 2 == 0 ? Role::kWorker : Role::kRendezvous;
  const std::size_t at_once = input.get<std::uint8_t>() + std::size_t{1};
  const int rounds = input.get<std::uint8_t>() % 4;
  if (!input.ok()) return 0;
  std::string_view bytes = lockstep::fuzz::as_text(data + 3, size - 3);

  Session target = make(role, "the secret");
  const bool was_open = prepare(target, role, rounds);
  while (target.next()) {
  }
  while (!bytes.empty()) {
    target.receive(bytes.substr(0, at_once));
    bytes.remove_prefix(std::min(at_once, bytes.size()));
    require(!target.next(), "a stranger's bytes are never a message");
    require(target.take_output().size() < 1024, "a stranger gets no more than it is due");
  }
  require(was_open || !target.open(), "no session opens without the secret");
  return 0;
}

// What strangers can say while arenas are handed over: offers in the bootstrap, and packets to either
// end of a session. The first byte chooses the end, the second how much of a genuine conversation
// comes before; then packets, each a byte of length and bytes.
#include "base/bytes.h"
#include "comm/arena/arena_session.h"
#include "comm/arena/offer.h"
#include "fuzz.h"

using lockstep::comm::Party;
using lockstep::comm::Session;
using lockstep::fuzz::require;
namespace comm = lockstep::comm;

namespace {

const Party kLower{"the secret", "world", "arena", 0, 3};
const Party kHigher{"the secret", "world", "arena", 2, 3};

Session caller() {
  return Session::to(kHigher, 0, std::string(lockstep::base::PairProof::kNonceBytes, 'c'));
}
Session listener() {
  return Session::from_anyone(kLower, std::string(lockstep::base::PairProof::kNonceBytes, 'l'));
}

// Lets the target hear so many genuine packets.
Session prepare(bool connects, int packets) {
  Session calling = caller();
  Session listening = listener();
  std::string packet = calling.hello();
  bool to_listener = true;
  while (packets > 0) {
    if (to_listener != connects) --packets;
    const auto reply = (to_listener ? listening : calling).receive(packet);
    if (!reply) break;
    packet = reply->packet;
    to_listener = !to_listener;
  }
  return connects ? calling : listening;
}

void check_offer(std::string_view bytes) {
  if (const auto offer = comm::decode_offer(bytes)) {
    require(comm::encode(*offer) == bytes, "a offer survives the bootstrap");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto text = lockstep::fuzz::as_text(data, size);
  check_offer(text);
  lockstep::base::ByteReader input(text);
  const bool connects = input.get<std::uint8_t>() % 2 == 0;
  Session target = prepare(connects, input.get<std::uint8_t>() % 3);
  const bool was_proven = target.proven();
  while (input.ok()) {
    const auto packet = input.get_raw(input.get<std::uint8_t>());
    if (!input.ok()) break;
    const auto reply = target.receive(packet);
    require(was_proven || !target.proven(), "nobody is proven without the secret");
    require(!reply || !reply->with_arena || was_proven, "no descriptor goes to a stranger");
    require(!reply || reply->packet.size() <= comm::kMostPacketBytes, "packets fit their room");
  }
  return 0;
}

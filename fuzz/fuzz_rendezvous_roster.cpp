// Proven workers that send nonsense: any sequence of messages, losses and ticks. The input is a
// list of events: a byte for the connection and the kind, a byte of length, a message.
#include <map>

#include "base/bytes.h"
#include "control/rendezvous/roster.h"
#include "fuzz.h"

using namespace lockstep::control;
using lockstep::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::base::ByteReader input(lockstep::fuzz::as_text(data, size));
  RendezvousRoster roster(3);
  TimePoint now{std::chrono::hours(1)};
  std::map<ConnectionId, int> owed;  // answers that a connection waits for
  while (input.ok()) {
    const auto head = input.get<std::uint8_t>();
    const ConnectionId from = head % 8;
    Answers answers;
    if (head < 200) {
      const auto message = decode_message(input.get_raw(input.get<std::uint8_t>()));
      if (!message) continue;
      const bool expects = !std::holds_alternative<GiveUp>(*message);
      if (roster.take(from, *message, now, answers) && expects) ++owed[from];
    } else if (head < 220) {
      roster.lost(from, answers);
      owed.erase(from);
    } else if (head < 254) {
      now += std::chrono::milliseconds(1 << (head % 16));
      roster.tick(now, answers);
      require(!roster.next_tick() || *roster.next_tick() > now, "what is due is answered");
    } else {
      roster.close(answers);
    }
    for (const Answer& answer : answers) {
      require(--owed[answer.to] >= 0, "nobody is answered more often than it asked");
    }
  }
  return 0;
}

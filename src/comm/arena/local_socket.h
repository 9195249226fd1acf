// Packets and descriptors between processes of one host, over sockets of the abstract namespace:
// nothing of them is left in a file system.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"

namespace lockstep::comm {

// Listens under a random name; Unavailable when the host has no such sockets or no descriptors left.
struct LocalListener {
  std::string name;
  base::Fd socket;
};
LocalListener listen_locally();

enum class Call { kConnected, kBusy, kNobody };

// Never blocks. kBusy: too many wait there already; kNobody: the listener is gone. Unavailable when
// this host lacks what a connection takes.
struct CallResult {
  Call call = Call::kNobody;
  base::Fd socket;
};
CallResult call_locally(const std::string& name);

// The next one that waits; nothing when nobody does. `exhausted` says that somebody waits and there
// are no descriptors left for it.
base::Fd accept_locally(int listener, bool& exhausted);

// The process at the other end runs, or ran when it connected or began to listen, as this one's
// user.
bool is_of_this_user(int socket);

// The number of that process, as this one sees it; 0 if it does not.
int process_behind(int socket);

// Sends a packet whole, with a descriptor when `fd` is one; false when the other side is gone or
// does not take it. Unavailable when this host lacks what sending takes.
bool send_packet(int socket, std::string_view packet, int fd = -1);

enum class Arrival { kPacket, kNothingYet, kEnd, kBadPacket };

struct Packet {
  Arrival arrival = Arrival::kNothingYet;
  std::string bytes;
  std::vector<base::Fd> descriptors;
};

enum class Descriptors { kRefused, kTaken };

// A packet of up to `most` bytes, never blocking. A longer one, or one with more descriptors than
// there is room for, is bad. Refused descriptors are never opened here; those of a bad packet are
// closed. Unavailable when this process has no descriptor left for one that is taken.
Packet receive_packet(int socket, std::size_t most, Descriptors descriptors);

}  // namespace lockstep::comm

// Packets and descriptors between processes of one host, over sockets in the abstract namespace.
// Such sockets leave nothing in a file system.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"

namespace lockstep::comm {

// Listens under a random name. Throws Unavailable if the host has no such sockets or no descriptors
// left.
struct LocalListener {
  std::string name;
  base::Fd socket;
};
LocalListener listen_locally();

enum class Call { kConnected, kBusy, kNobody };

// Never blocks. kBusy: too many connections wait there already. kNobody: the listener is gone.
// Throws Unavailable if this host lacks what a connection needs.
struct CallResult {
  Call call = Call::kNobody;
  base::Fd socket;
};
CallResult call_locally(const std::string& name);

// Accepts the next connection that waits; empty if there is none. `exhausted` says that one waits
// and that there are no descriptors left for it.
base::Fd accept_locally(int listener, bool& exhausted);

// Whether the process at the other end belonged to this process's user when it connected or began
// to listen.
bool is_of_this_user(int socket);

// The number of that process in this process's namespace; 0 if it has none there.
int process_behind(int socket);

// Sends a whole packet, with a descriptor if `fd` is one. False if the other side is gone or does
// not take it. Throws Unavailable if this host lacks what sending needs.
bool send_packet(int socket, std::string_view packet, int fd = -1);

enum class Arrival { kPacket, kNothingYet, kEnd, kBadPacket };

struct Packet {
  Arrival arrival = Arrival::kNothingYet;
  std::string bytes;
  std::vector<base::Fd> descriptors;
};

enum class Descriptors { kRefused, kTaken };

// Receives a packet of up to `most` bytes. Never blocks. A longer packet, or one with more
// descriptors than there is room for, is bad. Refused descriptors are never opened here; those of a
// bad packet are closed. Throws Unavailable if this process has no descriptor left for one that it
// should take.
Packet receive_packet(int socket, std::size_t most, Descriptors descriptors);

}  // namespace lockstep::comm

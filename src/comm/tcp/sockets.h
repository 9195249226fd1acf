// TCP sockets for forming a world: where to listen, and connections to others.
#pragma once

#include <sys/socket.h>

#include <string>

#include "base/fd.h"

namespace lockstep::comm {

// An IPv4 or IPv6 address with its port.
struct TcpAddress {
  std::string host;  // in numbers
  int port = 0;
};

// What a worker listens on while its world forms.
struct TcpListener {
  base::Fd socket;
  TcpAddress address;
};

// Listens on a free port of an interface ("eth0"), of an address or name of this host, or of the
// loopback if `where` is empty. BadInput if there is no such thing, Unavailable if it cannot
// listen.
TcpListener listen_on(const std::string& where);

// The next connection that waits, or nothing. It does not block.
base::Fd accept_next(const TcpListener& listener);

// Begins to connect. Nothing if that fails at once. poll() for POLLOUT says when it is done;
// connected() says how it went.
base::Fd begin_to_connect(const TcpAddress& address);
bool connected(int socket);

// What every connection between workers has: it does not wait to fill packets.
void set_up(int socket);

}  // namespace lockstep::comm

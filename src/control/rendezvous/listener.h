// Binding before serving: a launcher binds its rendezvous, then forks, then serves it.
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.h"
#include "control/rendezvous/address.h"

namespace lockstep::control {

// A socket that is bound and listens; connections queue up in it until a RendezvousServer takes it.
// Starts no thread; the descriptor closes on exec.
struct Listener {
  base::Fd fd;
  Address address;  // with the port that the kernel chose, where 0 was asked for
};

// An abstract socket: no file, gone with the last descriptor. BadInput when the name is taken.
Listener listen_unix(const std::string& name);

// TCP on one address: that of a named interface ("eth0"), or what the host name or number stands
// for. Never on all of them: 0.0.0.0 is BadInput, and so are an unknown interface, an address of
// another host and a port that is taken. Port 0 lets the kernel choose.
Listener listen_tcp(const std::string& interface_or_host, std::uint16_t port);

}  // namespace lockstep::control

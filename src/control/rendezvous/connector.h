// One attempt to reach a rendezvous.
#pragma once

#include <lockstep/deadline.h>

#include <string>

#include "base/fd.h"
#include "control/rendezvous/address.h"

namespace lockstep::control {

// A connected, non-blocking socket; or none, and the `problem` as a phrase. On a Unix socket it
// makes sure that the other end is our own user: anybody may take an abstract name.
base::Fd try_connect(const Address& address, Deadline deadline, std::string& problem);

}  // namespace lockstep::control

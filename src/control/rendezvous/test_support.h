// What the socket tests of the rendezvous share.
#pragma once

#include <fmt/format.h>
#include <lockstep/deadline.h>
#include <unistd.h>

#include <string>

namespace lockstep::control {

inline Deadline soon() {
  return Deadline::after(std::chrono::seconds(20));
}

// An abstract socket's name that no other test has.
inline std::string fresh_name() {
  static int count = 0;
  return fmt::format("lockstep-test-{}-{}", ::getpid(), ++count);
}

}  // namespace lockstep::control

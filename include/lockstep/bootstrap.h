// How workers that do not know each other's addresses yet exchange a few bytes. An engine forms its
// connections with it and asks for nothing else.
#pragma once

#include <lockstep/deadline.h>

#include <string>
#include <string_view>

namespace lockstep {

// Threads:   one caller at a time.
// Blocking:  every call returns, or throws, by its deadline.
// Failure:   throws Timeout or PeerLost; anything else that a program's own throws ends connect() with Unavailable.
// Ownership: values are copied.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // A name of this generation of the world; the same for all its workers, never used twice.
  virtual std::string name() const = 0;

  // What only workers of this generation know; every pair of them proves it to the other.
  virtual std::string secret() const = 0;

  // A key is put once.
  virtual void put(std::string_view key, std::string_view value, Deadline deadline) = 0;

  // Waits until some worker has put the key.
  virtual std::string get(std::string_view key, Deadline deadline) = 0;
};

}  // namespace lockstep

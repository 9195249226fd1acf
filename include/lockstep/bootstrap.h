// How workers exchange a few bytes before they know each other's addresses. An engine makes its
// connections with a Bootstrap and needs nothing else.
#pragma once

#include <lockstep/deadline.h>

#include <string>
#include <string_view>

namespace lockstep {

// Keys and values that all workers of one generation can write and read.
//
// Threads:   one caller at a time.
// Blocking:  every call returns, or throws, by its deadline.
// Failure:   throws Timeout or PeerLost; anything else that a program's own throws ends connect() with Unavailable.
// Ownership: values are copied.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // The name of this generation. It is the same for all its workers and is never used again.
  virtual std::string name() const = 0;

  // Bytes that only workers of this generation know. Each two workers prove it to each other.
  virtual std::string secret() const = 0;

  // Stores a value under a key. Each key is put once.
  virtual void put(std::string_view key, std::string_view value, Deadline deadline) = 0;

  // Returns the value of a key. Waits until some worker has put it.
  virtual std::string get(std::string_view key, Deadline deadline) = 0;
};

}  // namespace lockstep

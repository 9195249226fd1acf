// A bootstrap for one worker, which meets nobody but itself: for engines that a world of one is formed over, too.
#pragma once

#include <lockstep/bootstrap.h>
#include <lockstep/errors.h>

#include <map>
#include <string>

#include "base/hash.h"

namespace lockstep::control {

// Threads, Blocking, Ownership: as Bootstrap.
// Failure:   Timeout, at once, for a key that has not been put: nobody else will.
class OwnBootstrap : public Bootstrap {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return name_; }
  std::string secret() const override { return secret_; }
  void put(std::string_view key, std::string_view value, Deadline /*deadline*/) override {
    values_.emplace(key, value);
  }
  std::string get(std::string_view key, Deadline /*deadline*/) override {
    const auto found = values_.find(std::string(key));
    if (found != values_.end()) return found->second;
    throw Timeout("a world of one waits for a second worker: " + std::string(key));
  }

 private:
  static constexpr std::size_t kRandomBytes = 16;
  std::string name_ = "lockstep-alone-" + base::to_hex(base::random_bytes(kRandomBytes));
  std::string secret_ = base::to_hex(base::random_bytes(kRandomBytes));
  std::map<std::string, std::string> values_;
};

}  // namespace lockstep::control

// Workers in several hosts that join by variables, as a person starts them by hand.
#pragma once

#include <lockstep/world.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "tests/support/hosts.h"

namespace lockstep::testing {

// A file with a secret that only its process has; gone with it.
class SecretFile {
 public:
  SecretFile() : file_(::memfd_create("secret", MFD_CLOEXEC)) {
    ::fchmod(file_.get(), 0600);
    base::write_all(file_.get(), "a secret of the tests, long enough to be one",
                    Deadline::after(std::chrono::seconds(5)));
  }
  std::string path() const {
    return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file_.get());
  }

 private:
  base::Fd file_;
};

using Variables = std::vector<std::pair<std::string, std::string>>;

inline Variables variables_of(const Placement& placement, int rank, const std::string& rendezvous,
                              const std::string& secret_file) {
  const int host = placement.host_of(rank);
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(placement.size())},
          {"LOCAL_RANK", std::to_string(rank - placement.first(host))},
          {"LOCAL_WORLD_SIZE", std::to_string(placement.workers[static_cast<std::size_t>(host)])},
          {"LOCKSTEP_RENDEZVOUS", rendezvous},
          {"LOCKSTEP_SECRET_FILE", secret_file},
          {"LOCKSTEP_TIMEOUT", "60"}};
}

// Keep `hosts` and `secret` until all workers have joined.
inline std::unique_ptr<ProcessWorld> start_joined(const bench::Hosts& hosts,
                                                  const Placement& placement,
                                                  const std::string& rendezvous,
                                                  const SecretFile& secret,
                                                  const std::function<void(World&)>& body) {
  const std::string file = secret.path();
  return std::make_unique<ProcessWorld>(placement.size(), [=, &hosts](Bootstrap& bootstrap) {
    enter_or_throw(hosts, placement.host_of(bootstrap.rank()));
    for (const auto& [key, value] : variables_of(placement, bootstrap.rank(), rendezvous, file))
      ::setenv(key.c_str(), value.c_str(), 1);
    World world = join();
    body(world);
  });
}

}  // namespace lockstep::testing

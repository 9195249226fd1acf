// Strangers on a host of their own, which attack every port on which the workers of other hosts listen.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <vector>

#include "bench/hosts/hosts.h"
#include "tests/support/strangers.h"

namespace lockstep::testing {

// Threads:   any.
// Blocking:  never.
// Failure:   the constructor throws Unavailable.
// Ownership: owns its processes, and ends them. The hosts must live as long.
class Intruders {
 public:
  // They attack hosts 0 … from−1 from host `from`, first with nothing but what they record.
  Intruders(const bench::Hosts& hosts, int from);
  ~Intruders();
  Intruders(const Intruders&) = delete;
  Intruders& operator=(const Intruders&) = delete;

  void rest() { page_->attack = kRest; }
  void attack(Manner manner) { page_->attack = static_cast<int>(manner); }
  // Sends what workers have sent to each other before.
  void replay() { page_->attack = kReplay; }

  int connections() const { return page_->connections; }  // that were begun so far
  int recorded() const { return page_->recorded; }        // messages

 private:
  static constexpr int kRest = -1;
  static constexpr int kReplay = -2;
  static constexpr int kMostPorts = 64;
  static constexpr int kMostHosts = 4;
  static constexpr int kMostRecords = 256;
  struct Record {
    int bytes;
    char data[1500];
  };
  // Shared with the processes.
  struct Page {
    std::atomic<int> attack{kRest};
    std::atomic<int> connections{0};
    std::atomic<int> recorded{0};
    std::atomic<int> ports[kMostHosts][kMostPorts]{};  // 0: none
    Record records[kMostRecords];
  };

  pid_t start(const std::function<void()>& body);
  static void scout(Page& page, int host);
  static void record(Page& page);
  static void intrude(Page& page);

  Page* page_;
  std::vector<pid_t> processes_;
};

}  // namespace lockstep::testing

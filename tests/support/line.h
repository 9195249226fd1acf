// A line between a host and the switch that loses, delays and changes what it carries: frames pass through a process of its
// own (the kernel may have no netem).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>

#include "bench/hosts/hosts.h"

namespace lockstep::testing {

// Threads:   any.
// Blocking:  never.
// Failure:   the constructor throws Unavailable.
// Ownership: owns the process that carries, and ends it. The hosts must live as long.
class Line {
 public:
  // The hosts' lines are taps.
  Line(const bench::Hosts& hosts, int host);
  ~Line();
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  // In each direction.
  void delay(std::chrono::microseconds time) { page_->delay_us = time.count(); }
  // Of every `frames` frames one is lost, at random; 0: none.
  void lose_one_in(int frames) { page_->lose_one_in = frames; }
  void fall_silent() { page_->silent = true; }
  // One bit changes in the payload of one of the next TCP segments over IPv4. The checksum is made right again, as a
  // device on the way does that changes packets in its memory.
  void flip_one_bit() { page_->flip = true; }
  int flips() const { return page_->flips; }

 private:
  // Shared with the process.
  struct Page {
    std::atomic<std::int64_t> delay_us{0};
    std::atomic<int> lose_one_in{0};
    std::atomic<bool> silent{false};
    std::atomic<bool> flip{false};
    std::atomic<int> flips{0};
  };
  class Carrier;

  Page* page_;
  pid_t process_ = -1;
};

}  // namespace lockstep::testing

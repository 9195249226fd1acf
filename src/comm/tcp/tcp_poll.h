// The sockets of all peers, and a bell, in one epoll.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/fd.h"

namespace lockstep::comm {

// Threads:   any; watch and forget of one socket one at a time.
// Blocking:  wait blocks for as long as it is told.
// Failure:   the constructor, watch and set_writable throw Unavailable if the system has no room.
// Ownership: borrows the sockets.
class TcpPoll {
 public:
  static constexpr std::uint64_t kBell = ~std::uint64_t{0};
  struct Event {
    std::uint64_t who = kBell;
    bool readable = false;  // or closed, or failed
  };

  explicit TcpPoll(std::size_t sockets);

  void watch(int socket, std::size_t who);
  // Whether wait() also says that the socket takes bytes.
  void set_writable(int socket, std::size_t who, bool wanted);
  void forget(int socket) const noexcept;

  // Ends a wait() of one thread, now or the next one, until somebody has heard it.
  void ring() const noexcept;
  void hear() const noexcept;

  // Waits. Returns how many events there are, at most kMostEvents; below 1: none.
  static constexpr int kMostEvents = 64;
  int wait(std::span<Event> events, int milliseconds) const;

 private:
  void control(int operation, int socket, std::size_t who, bool writable) const;

  base::Fd epoll_;
  base::Fd bell_;
  std::vector<bool> writable_;
};

}  // namespace lockstep::comm

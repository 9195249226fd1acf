// Processes that connect to a worker and do not know the secret.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <string>

#include "base/fd.h"

namespace lockstep::testing {

// What a stranger does as soon as it is connected.
enum class Manner { kSilent, kGarbage, kClose, kReset, kFlood };
inline constexpr Manner kManners[] = {Manner::kSilent, Manner::kGarbage, Manner::kClose,
                                      Manner::kReset, Manner::kFlood};

inline std::string name(Manner manner) {
  constexpr const char* kNames[] = {"silent", "garbage", "close", "reset", "flood"};
  return kNames[static_cast<int>(manner)];
}

// Begins to connect to an IPv4 address.
inline base::Fd connect_as_stranger(const std::string& host, int port) {
  base::Fd stranger(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  ::inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  ::connect(stranger.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  return stranger;
}

inline void behave(base::Fd& stranger, Manner manner) {
  const auto ready = Deadline::after(std::chrono::milliseconds(100));
  if (manner == Manner::kSilent || !base::wait_ready(stranger.get(), POLLOUT, ready)) return;
  if (manner == Manner::kGarbage || manner == Manner::kFlood) {
    const std::string noise(manner == Manner::kFlood ? 1 << 20 : 200, 'x');
    ::send(stranger.get(), noise.data(), noise.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return;
  }
  if (manner == Manner::kReset) {
    const linger now{1, 0};
    ::setsockopt(stranger.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }
  stranger.reset();
}

}  // namespace lockstep::testing

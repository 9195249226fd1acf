#include "comm/arena/local_socket.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/check.h"
#include "base/hash.h"

namespace lockstep::comm {
namespace {

constexpr int kBacklog = 256;
constexpr std::size_t kNameBytes = 16;  // random, so that nobody can bind the name first

struct Address {
  sockaddr_un value{};
  socklen_t bytes = 0;
};

// The abstract namespace: the name begins with a zero, and its length says where it ends.
Address address_of(const std::string& name) {
  Address address;
  LOCKSTEP_CHECK(name.size() < sizeof address.value.sun_path, "a socket's name fits");
  address.value.sun_family = AF_UNIX;
  std::memcpy(address.value.sun_path + 1, name.data(), name.size());
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// Packets, not a stream: each arrives whole, with the descriptors that were sent with it.
base::Fd make_socket() {
  base::Fd made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made) {
    throw Unavailable(
        fmt::format("cannot make a socket: {}; raise `ulimit -n`", std::strerror(errno)));
  }
  return made;
}

// Errors of the kernel that mean: this host lacks something. All others mean: the other side is
// gone.
bool is_shortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM ||
         error == ETOOMANYREFS;
}

// Room for two descriptors, so that one too many is seen.
constexpr std::size_t kDescriptorsRoom = 2;
constexpr std::size_t kControlBytes = CMSG_SPACE(kDescriptorsRoom * sizeof(int));

// Every descriptor of a message gets an owner at once, so that it is closed even if the message is
// refused later.
std::vector<base::Fd> take_descriptors(msghdr& message) {
  std::vector<base::Fd> taken;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof fd);
      taken.emplace_back(fd);
    }
  }
  return taken;
}

// accept() takes a descriptor before it looks for a connection. Without a free one it fails even if
// nobody waits.
bool somebody_waits(int listener) {
  pollfd entry{listener, POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

}  // namespace

LocalListener listen_locally() {
  LocalListener listener;
  listener.name = "lockstep-arena-" + base::to_hex(base::random_bytes(kNameBytes));
  listener.socket = make_socket();
  const Address address = address_of(listener.name);
  if (::bind(listener.socket.get(), reinterpret_cast<const sockaddr*>(&address.value),
             address.bytes) != 0 ||
      ::listen(listener.socket.get(), kBacklog) != 0) {
    throw Unavailable(
        fmt::format("cannot listen on a socket of this host: {}; see whether a "
                    "sandbox forbids abstract Unix sockets",
                    std::strerror(errno)));
  }
  return listener;
}

CallResult call_locally(const std::string& name) {
  CallResult result{Call::kNobody, make_socket()};
  const Address address = address_of(name);
  while (::connect(result.socket.get(), reinterpret_cast<const sockaddr*>(&address.value),
                   address.bytes) != 0) {
    if (errno == EINTR) continue;
    if (is_shortage(errno)) {
      throw Unavailable(fmt::format(
          "cannot connect a socket: {}; raise `ulimit -n`, or free memory", std::strerror(errno)));
    }
    return {errno == EAGAIN ? Call::kBusy : Call::kNobody, base::Fd()};
  }
  result.call = Call::kConnected;
  return result;
}

base::Fd accept_locally(int listener, bool& exhausted) {
  exhausted = false;
  while (true) {
    base::Fd caller(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (caller) return caller;
    if (errno == EINTR || errno == ECONNABORTED) continue;
    exhausted = is_shortage(errno) && somebody_waits(listener);
    return {};
  }
}

bool is_of_this_user(int socket) {
  ucred other{};
  socklen_t bytes = sizeof other;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &bytes) == 0 &&
         bytes == sizeof other && other.uid == ::geteuid();
}

int process_behind(int socket) {
  ucred other{};
  socklen_t bytes = sizeof other;
  const bool known = ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &bytes) == 0;
  return known && bytes == sizeof other ? other.pid : 0;
}

bool send_packet(int socket, std::string_view packet, int fd) {
  iovec bytes{const_cast<char*>(packet.data()), packet.size()};  // sendmsg only reads
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(part), &fd, sizeof fd);
  }
  while (true) {
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && is_shortage(errno)) {
      throw Unavailable(
          fmt::format("cannot send through a socket: {}; raise `ulimit -n`, or free memory",
                      std::strerror(errno)));
    }
    return sent == static_cast<ssize_t>(packet.size());
  }
}

Packet receive_packet(int socket, std::size_t most, Descriptors descriptors) {
  Packet packet;
  packet.bytes.resize(most);
  iovec bytes{packet.bytes.data(), most};
  alignas(cmsghdr) std::array<char, kControlBytes> control{};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (descriptors == Descriptors::kTaken) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
  }
  ssize_t got = -1;
  do {
    got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return {errno == EAGAIN ? Arrival::kNothingYet : Arrival::kEnd, {}, {}};
  auto taken = take_descriptors(message);
  // There was room for more descriptors than have come, so this process had none left for the rest.
  if (descriptors == Descriptors::kTaken && (message.msg_flags & MSG_CTRUNC) != 0 &&
      taken.size() < kDescriptorsRoom) {
    throw Unavailable("no descriptor is left for one that was sent; raise `ulimit -n`");
  }
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) return {Arrival::kBadPacket, {}, {}};
  if (got == 0) return {Arrival::kEnd, {}, {}};  // an empty packet reads the same
  packet.arrival = Arrival::kPacket;
  packet.bytes.resize(static_cast<std::size_t>(got));
  packet.descriptors = std::move(taken);
  return packet;
}

}  // namespace lockstep::comm

// What plain TCP sockets can do, without frames, tags, headers or engine: the limit of `tcp`.
//
//   rail      the workers with the same place in their hosts; rail i of R reduces part i of the
//             buffer. With one rail every worker takes part in everything
//   slice     what one worker of a rail owns of that part
//
// The pattern is that of `direct`: a worker sends each owner its slice, adds what it receives to its
// own, and sends the sums back as soon as everybody's operands are there. Short buffers are sent
// whole. Bytes are added while they are in the cache.
//
// A worker that has nothing to do sleeps in poll(), as most programs do; or it asks the sockets again
// and again for a while, as the engine does.
//
// With several rails the workers of a host do not reduce among themselves: what is left are the
// least bytes that must cross the network, and the sums are not compared.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <lockstep/world.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

#include "base/environment.h"
#include "base/fd.h"
#include "bench/allreduce/worker.h"
#include "plan/traffic.h"

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kSpin{100};  // as comm/tcp/tcp_link.cpp
constexpr std::chrono::seconds kToConnect{60};
constexpr std::size_t kChunkBytes = std::size_t{128} << 10;

struct Place {
  std::uint32_t address = 0;  // both as they are on the wire
  std::uint32_t port = 0;
};

sockaddr_in to_socket_address(Place place) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = place.address;
  address.sin_port = static_cast<in_port_t>(place.port);
  return address;
}

base::Fd listen_at(Place& own) {
  const std::string text = base::environment(kAddressVariable).value_or("127.0.0.1");
  base::Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ::inet_pton(AF_INET, text.c_str(), &own.address);
  sockaddr_in address = to_socket_address(own);
  socklen_t length = sizeof address;
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
    throw Unavailable("sockets: cannot listen on " + text);
  own.port = address.sin_port;
  return socket;
}

// One other worker of the rail.
struct Rival {
  int member = 0;
  base::Fd socket;
  // Bytes of an all-reduce, in both stages: operands, then sums.
  std::size_t sent = 0;
  std::size_t received = 0;
};

class Sockets : public Reducer {
 public:
  Sockets(int rails, Idle idle)
      : rails_(rails), spin_(idle == Idle::kSpins ? kSpin : std::chrono::microseconds(0)) {
    if (rails < 1 || world_.size() % rails != 0)
      throw BadInput(fmt::format("sockets: {} workers in {} rails", world_.size(), rails));
    members_ = world_.size() / rails;
    member_ = world_.rank() / rails;
    connect_rail();
    chunk_.resize(kChunkBytes / sizeof(float));
  }

  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  float* memory(std::size_t bytes) override {
    own_.resize(bytes / sizeof(float));
    return own_.data();
  }
  void barrier() override { world_.comm().barrier().wait(); }
  void max(std::span<double> values) override {
    world_.comm()
        .all_reduce({values.data(), values.size(), DType::kFloat64}, {ReduceOp::kMax})
        .wait();
  }
  bool waits() const override { return rails_ == 1; }

  void all_reduce(float* data, std::size_t count) override {
    const auto parts = plan::even_bounds(count, rails_, 1);
    const auto rail = static_cast<std::size_t>(world_.rank() % rails_);
    data_ = data + parts[rail];
    const std::size_t elements = parts[rail + 1] - parts[rail];
    short_ = elements * sizeof(float) <= kShortBytes;
    bounds_ = plan::even_bounds(elements, members_, 16);
    if (short_) before_.assign(data_, data_ + elements);
    for (Rival& rival : rivals_) rival.sent = rival.received = 0;
    auto spins_until = Clock::now() + spin_;
    while (!done()) {
      bool moved = false;
      for (Rival& rival : rivals_) moved = (send_to(rival) | receive_from(rival)) || moved;
      if (moved)
        spins_until = Clock::now() + spin_;
      else if (Clock::now() >= spins_until)
        sleep();
    }
  }

 private:
  static constexpr std::size_t kShortBytes = 4096;  // as plan/traffic.cpp

  // Each worker calls the members before it, and is called by those after it.
  void connect_rail() {
    std::vector<Place> places(static_cast<std::size_t>(world_.size()));
    Place& own = places[static_cast<std::size_t>(world_.rank())];
    const base::Fd listener = listen_at(own);
    world_.comm()
        .all_gather({places.data(), places.size() * sizeof(Place), DType::kUInt8},
                    std::vector<std::size_t>(places.size(), sizeof(Place)))
        .wait();
    for (int other = 0; other < member_; ++other) {
      const int rank = other * rails_ + world_.rank() % rails_;
      add(other, call(places[static_cast<std::size_t>(rank)]));
      const auto said = static_cast<char>(member_);
      base::write_all(rivals_.back().socket.get(), {&said, 1}, Deadline::after(kToConnect));
    }
    for (int other = member_ + 1; other < members_; ++other) {
      if (!base::wait_ready(listener.get(), POLLIN, Deadline::after(kToConnect)))
        throw Timeout("sockets: nobody calls");
      base::Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const std::string said = base::read_exactly(socket.get(), 1, Deadline::after(kToConnect));
      if (said.empty()) throw PeerLost("sockets: a caller is gone");
      add(said[0], std::move(socket));
    }
  }

  static base::Fd call(Place place) {
    base::Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = to_socket_address(place);
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      throw Unavailable("sockets: cannot connect");
    return socket;
  }

  void add(int member, base::Fd socket) {
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    base::set_nonblocking(socket.get());
    rivals_.push_back({member, std::move(socket)});
  }

  std::size_t slice_bytes(int member) const {
    const auto at = static_cast<std::size_t>(member);
    if (short_) return bounds_.back() * sizeof(float);
    return (bounds_[at + 1] - bounds_[at]) * sizeof(float);
  }
  std::byte* slice(int member) const {
    return reinterpret_cast<std::byte*>(data_ +
                                        (short_ ? 0 : bounds_[static_cast<std::size_t>(member)]));
  }
  // Whole elements of this worker's slice to which all operands have been added.
  std::size_t summed() const {
    std::size_t least = slice_bytes(member_);
    for (const Rival& rival : rivals_) least = std::min(least, rival.received);
    return least / sizeof(float) * sizeof(float);
  }
  std::size_t to_send(const Rival& rival) const {
    return slice_bytes(rival.member) + (short_ ? 0 : slice_bytes(member_));
  }
  std::size_t to_receive(const Rival& rival) const {
    return slice_bytes(member_) + (short_ ? 0 : slice_bytes(rival.member));
  }
  bool done() const {
    return std::all_of(rivals_.begin(), rivals_.end(), [this](const Rival& rival) {
      return rival.sent == to_send(rival) && rival.received == to_receive(rival);
    });
  }

  bool send_to(Rival& rival) const {
    const std::size_t operands = slice_bytes(rival.member);
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
    if (rival.sent < operands) {
      const auto* const memory =
          short_ ? reinterpret_cast<const std::byte*>(before_.data()) : slice(rival.member);
      from = memory + rival.sent;
      bytes = operands - rival.sent;
    } else if (!short_) {
      from = slice(member_) + (rival.sent - operands);
      bytes = operands + summed() - rival.sent;
    }
    if (bytes == 0) return false;
    const ssize_t sent = ::send(rival.socket.get(), from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    check(sent);
    rival.sent += sent > 0 ? static_cast<std::size_t>(sent) : 0;
    return sent > 0;
  }

  bool receive_from(Rival& rival) {
    const std::size_t operands = slice_bytes(member_);
    if (rival.received == to_receive(rival)) return false;
    if (rival.received < operands) return add_from(rival, operands - rival.received);
    const std::size_t at = rival.received - operands;
    const ssize_t got = ::recv(rival.socket.get(), slice(rival.member) + at,
                               slice_bytes(rival.member) - at, MSG_DONTWAIT);
    check(got);
    rival.received += got > 0 ? static_cast<std::size_t>(got) : 0;
    return got > 0;
  }

  // Takes bytes of operands. An element of which only some bytes are there waits for the rest in the
  // kernel.
  bool add_from(Rival& rival, std::size_t most) {
    const std::size_t wanted = std::min(most, kChunkBytes);
    ssize_t got = ::recv(rival.socket.get(), chunk_.data(), wanted, MSG_DONTWAIT);
    check(got);
    if (got <= 0) return false;
    while (got % static_cast<ssize_t>(sizeof(float)) != 0) {
      auto* const rest = reinterpret_cast<std::byte*>(chunk_.data()) + got;
      const ssize_t more = ::recv(rival.socket.get(), rest, sizeof(float) - got % sizeof(float), 0);
      check(more);
      got += std::max<ssize_t>(more, 0);
    }
    auto* const sum = reinterpret_cast<float*>(slice(member_) + rival.received);
    const auto elements = static_cast<std::size_t>(got) / sizeof(float);
    for (std::size_t i = 0; i < elements; ++i) sum[i] += chunk_[i];
    rival.received += static_cast<std::size_t>(got);
    return true;
  }

  static void check(ssize_t result) {
    if (result == 0 || (result < 0 && errno != EAGAIN && errno != EINTR))
      throw PeerLost("sockets: a connection has ended");
  }

  void sleep() const {
    std::vector<pollfd> entries;
    for (const Rival& rival : rivals_) {
      const bool sends = rival.sent < slice_bytes(rival.member) + (short_ ? 0 : summed());
      const bool receives = rival.received < to_receive(rival);
      entries.push_back({rival.socket.get(),
                         static_cast<short>((sends ? POLLOUT : 0) | (receives ? POLLIN : 0)), 0});
    }
    ::poll(entries.data(), entries.size(), 1000);
  }

  World world_ = join();
  int rails_;
  std::chrono::microseconds spin_;
  int members_ = 1;
  int member_ = 0;
  std::vector<Rival> rivals_;
  // Of the all-reduce that runs.
  float* data_ = nullptr;  // this rail's part
  bool short_ = false;
  std::vector<std::size_t> bounds_;  // of slices
  std::vector<float> before_;        // a short buffer, before anything was added to it
  std::vector<float> chunk_;
  std::vector<float> own_;
};

}  // namespace

std::unique_ptr<Reducer> make_sockets_peer(int rails, Idle idle) {
  return std::make_unique<Sockets>(rails, idle);
}

}  // namespace lockstep::bench

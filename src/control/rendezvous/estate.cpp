#include "control/rendezvous/estate.h"

#include <fcntl.h>
#include <lockstep/errors.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "comm/arena/local_socket.h"

namespace lockstep::control {
namespace {

using comm::Arrival;

constexpr std::chrono::seconds kPatience{5};
constexpr std::size_t kMostItems = 65536;
// A worker that dies of what it finds in the memory would do so for ever.
constexpr int kMostFetches = 5;

enum class EstateKind : std::uint32_t {
  kGive = 1,
  kSeal = 2,
  kDrop = 3,
  kFetch = 4,
  kItem = 5,
  kEnd = 6
};

// As it travels. The launcher and the program may be of different builds.
struct EstateMessage {
  static constexpr std::uint64_t kMagic = 0x3165746174736531;
  std::uint64_t magic = kMagic;
  EstateKind kind = EstateKind::kEnd;
  std::uint32_t number = 0;  // of an item in the answer to fetch
  EstateItem item;
};

std::string_view bytes_of(const EstateMessage& message) {
  return {reinterpret_cast<const char*>(&message), sizeof message};
}

std::optional<EstateMessage> estate_message(const std::string& bytes) {
  EstateMessage message;
  if (bytes.size() != sizeof message) return std::nullopt;
  std::memcpy(&message, bytes.data(), sizeof message);
  if (message.magic != EstateMessage::kMagic) return std::nullopt;
  return message;
}

// Until the other side has taken it, or is gone.
bool send_or_give_up(int socket, const EstateMessage& message, int memory = -1) {
  const Deadline deadline = Deadline::after(kPatience);
  try {
    while (!comm::send_packet(socket, bytes_of(message), memory)) {
      pollfd entry{socket, 0, 0};
      if (::poll(&entry, 1, 0) > 0 || deadline.expired()) return false;
      base::wait_ready(socket, POLLOUT, deadline);
    }
    return true;
  } catch (const Unavailable&) {
    return false;
  }
}

// The program may have closed the descriptor and opened another file under the same number.
bool is_estate(int fd) {
  int type = 0;
  socklen_t size = sizeof type;
  return ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

}  // namespace

Estate::Estate(std::optional<int> inherited) {
  if (inherited && is_estate(*inherited))
    socket_ = base::Fd(::fcntl(*inherited, F_DUPFD_CLOEXEC, 3));
}

bool Estate::give(const EstateItem& item, int memory) const {
  return socket_ &&
         send_or_give_up(socket_.get(), {.kind = EstateKind::kGive, .item = item}, memory);
}

bool Estate::seal(std::uint64_t set) const {
  return socket_ &&
         send_or_give_up(socket_.get(), {.kind = EstateKind::kSeal, .item = {.set = set}});
}

void Estate::drop() const {
  if (socket_) send_or_give_up(socket_.get(), {.kind = EstateKind::kDrop});
}

std::vector<HeldItem> Estate::fetch() const {
  std::vector<HeldItem> items;
  while (socket_) {
    const auto number = static_cast<std::uint32_t>(items.size());
    if (!send_or_give_up(socket_.get(), {.kind = EstateKind::kFetch, .number = number})) return {};
    if (!base::wait_ready(socket_.get(), POLLIN, Deadline::after(kPatience))) return {};
    try {
      auto packet =
          comm::receive_packet(socket_.get(), sizeof(EstateMessage), comm::Descriptors::kTaken);
      const auto message = estate_message(packet.bytes);
      if (!message || message->number != number) return {};
      if (message->kind == EstateKind::kEnd) return items;
      if (packet.descriptors.size() != 1) return {};
      items.push_back({message->item, std::move(packet.descriptors.front())});
    } catch (const Unavailable&) {
      return {};
    }
  }
  return items;
}

struct EstateKeeper::Said {
  EstateMessage message;
  std::vector<base::Fd> descriptors;
};

base::Fd EstateKeeper::open() {
  serve();  // what the dead have said comes before what the new worker asks
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return {};
  sockets_.emplace_back(ends[0]);
  return base::Fd(ends[1]);
}

std::vector<int> EstateKeeper::sockets() const {
  std::vector<int> all;
  for (const base::Fd& socket : sockets_) all.push_back(socket.get());
  return all;
}

void EstateKeeper::serve() {
  std::erase_if(sockets_, [this](const base::Fd& socket) { return !hear(socket.get()); });
}

// False if the worker has ended.
bool EstateKeeper::hear(int socket) {
  while (true) {
    try {
      auto packet = comm::receive_packet(socket, sizeof(EstateMessage), comm::Descriptors::kTaken);
      if (packet.arrival == Arrival::kNothingYet) return true;
      if (packet.arrival == Arrival::kEnd) return false;
      if (const auto message = estate_message(packet.bytes))
        obey(socket, {*message, std::move(packet.descriptors)});
    } catch (const Unavailable&) {
      drop();  // it would lack something
    }
  }
}

void EstateKeeper::obey(int socket, Said said) {
  const EstateMessage& message = said.message;
  switch (message.kind) {
    case EstateKind::kGive:
      if (message.item.set != 0 && said.descriptors.size() == 1)
        keep({message.item, std::move(said.descriptors.front())});
      return;
    case EstateKind::kSeal:
      if (message.item.set < sealed_ || !sets_.contains(message.item.set)) return;
      sealed_ = message.item.set;
      fetched_ = 0;
      std::erase_if(sets_, [this](const auto& set) { return set.first != sealed_; });
      return;
    case EstateKind::kDrop:
      return drop();
    case EstateKind::kFetch:
      return answer(socket, message.number);
    case EstateKind::kItem:
    case EstateKind::kEnd:
      return;
  }
}

void EstateKeeper::keep(HeldItem item) {
  // What is neither sealed nor the last one is of a generation that has ended before it was whole.
  const std::uint64_t last = std::max(item.item.set, sets_.empty() ? 0 : sets_.rbegin()->first);
  if (item.item.set != last && item.item.set != sealed_) return;
  std::erase_if(sets_, [&](const auto& set) { return set.first != sealed_ && set.first != last; });
  auto& items = sets_[item.item.set];
  if (items.size() < kMostItems) items.push_back(std::move(item));
}

void EstateKeeper::drop() {
  sets_.clear();
  sealed_ = 0;
}

void EstateKeeper::answer(int socket, std::uint32_t number) {
  if (number == 0) ++fetched_;
  const auto found = sets_.find(sealed_);
  const bool has_more = sealed_ != 0 && found != sets_.end() && fetched_ <= kMostFetches &&
                        number < found->second.size();
  EstateMessage message{.kind = has_more ? EstateKind::kItem : EstateKind::kEnd, .number = number};
  if (has_more) message.item = found->second[number].item;
  try {
    // Only one answer is under way, so there is room for it.
    comm::send_packet(socket, bytes_of(message),
                      has_more ? found->second[number].memory.get() : -1);
  } catch (const Unavailable&) {
    drop();
  }
}

}  // namespace lockstep::control

#include "comm/messages.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <new>
#include <utility>

namespace lockstep::comm {
namespace {

Header message_header(const Buffer& data, std::uint64_t sequence) {
  Header header;
  header.kind = Kind::kMessage;
  header.dtype = data.dtype;
  header.count = data.count;
  header.sequence = sequence;
  return header;
}

// Payload need not wait for the greeting.
class LineMessage : public Window::Message {
 public:
  enum class Way { kOut, kIn };
  LineMessage(const Setting& setting, const Header& header, Way way, int peer, const Buffer& data)
      : exchange_(setting, header, Deadline::after(kUnlimited)),
        way_(way),
        peer_(peer),
        data_(data) {}

  std::size_t bytes() const override { return data_.bytes(); }
  void post() override {
    const bool out = way_ == Way::kOut;
    out ? exchange_.greet(peer_) : exchange_.expect(peer_);
    payload_ = out ? exchange_.send(peer_, data_.data, data_.bytes())
                   : exchange_.recv(peer_, data_.data, data_.bytes());
  }
  // After post().
  void wait(Deadline deadline) {
    exchange_.await_until(deadline);
    exchange_.wait(payload_);
    exchange_.finish();
  }

 private:
  static constexpr std::chrono::hours kUnlimited{24 * 365};
  Exchange exchange_;
  Way way_;
  int peer_;
  Buffer data_;
  Exchange::Ticket payload_;  // last, so that it goes first
};

}  // namespace

void Window::add(std::shared_ptr<Message> message) {
  const base::Lock lock(mutex_);
  waiting_.push_back(std::move(message));
  fill();
}

void Window::leave(const Message& message) {
  const base::Lock lock(mutex_);
  --count_;
  bytes_ -= message.bytes();
  fill();
}

// One message is always under way, however long it is.
void Window::fill() {
  while (!waiting_.empty()) {
    Message& next = *waiting_.front();
    if (count_ > 0 && (count_ == kMost || bytes_ + next.bytes() > kMostBytes)) return;
    next.post();
    ++count_;
    bytes_ += next.bytes();
    waiting_.pop_front();
  }
}

std::shared_ptr<Operation> Messages::send(int to, const Buffer& data) {
  return or_end(*group_.link, [&] { return submit(Direction::kSend, to, data); });
}

std::shared_ptr<Operation> Messages::recv(int from, const Buffer& data) {
  if (mailboxes_.contains(from)) {
    throw BadInput(
        fmt::format("messages from rank {} are taken with try_recv on this channel; use another "
                    "channel for recv",
                    group_.members[from]));
  }
  return or_end(*group_.link, [&] { return submit(Direction::kRecv, from, data); });
}

std::shared_ptr<Operation> Messages::submit(Direction direction, int peer, const Buffer& data) {
  const bool sends = direction == Direction::kSend;
  Line& line = (sends ? outgoing_ : incoming_)[peer];
  auto message = std::make_shared<LineMessage>(
      group_.setting(Group::Lane::kMessages, line.scratch), message_header(data, line.sequence++),
      sends ? LineMessage::Way::kOut : LineMessage::Way::kIn, peer, data);
  line.window.add(message);
  auto operation = std::make_shared<Operation>(
      group_.link, fmt::format("{} rank {}", sends ? "send to" : "recv from", group_.members[peer]),
      [this, &line, message = std::move(message)]() mutable {
        const auto own = std::exchange(message, nullptr);  // ends with this function
        own->wait(Deadline::after(group_.timeout));
        line.window.leave(*own);
        return nullptr;
      });
  line.executor.submit(operation);
  return operation;
}

bool Messages::try_recv(int from, const Buffer& data) {
  if (incoming_.contains(from)) {
    throw BadInput(
        fmt::format("messages from rank {} are taken with recv on this channel; use another "
                    "channel for try_recv",
                    group_.members[from]));
  }
  Mailbox& mailbox = or_end(*group_.link, [&]() -> Mailbox& {
    return mailboxes_.try_emplace(from, group_, from).first->second;
  });
  return mailbox.try_take(data);
}

bool Messages::idle() const {
  for (const auto& [peer, line] : outgoing_) {
    if (!line.executor.idle()) return false;
  }
  for (const auto& [peer, line] : incoming_) {
    if (!line.executor.idle()) return false;
  }
  return true;
}

Mailbox::Mailbox(const Group& group, int peer)
    : group_(group), peer_(peer), thread_(start_thread([this] { loop(); })) {}

Mailbox::~Mailbox() {
  {
    const base::Lock lock(mutex_);
    stopping_ = true;
    if (awaited_ != nullptr) awaited_->cancel();
    changed_.notify_all();
  }
  thread_.join();
}

bool Mailbox::wait_interruptibly(Transfer& transfer, Deadline deadline) {
  {
    const base::Lock lock(mutex_);
    if (stopping_) return false;
    awaited_ = &transfer;
  }
  const auto forget = [&] {
    const base::Lock lock(mutex_);
    awaited_ = nullptr;
  };
  try {
    const bool arrived = transfer.wait(deadline);
    forget();
    return arrived;
  } catch (...) {
    forget();
    throw;
  }
}

// This thread waits for a message that may never be sent, so the wait for the header has no real
// deadline. After the header the payload must come within the timeout.
std::optional<Mailbox::Message> Mailbox::receive() {
  Scratch scratch;
  const Setting setting = group_.setting(Group::Lane::kMessages, scratch);
  const int peer = group_.members[peer_];
  HeaderBytes bytes{};
  {
    const auto greeting = group_.link->recv(peer, setting.greetings, bytes.data(), bytes.size());
    if (!wait_interruptibly(*greeting, Deadline::after(std::chrono::hours(24 * 365)))) {
      return std::nullopt;
    }
  }
  const auto header = decode_header(bytes);
  if (!header || header->kind != Kind::kMessage) {
    throw Mismatch(
        fmt::format("rank {} sent something that is not a message of this version", peer), {peer});
  }
  if (header->count > std::numeric_limits<std::ptrdiff_t>::max() / size_of(header->dtype))
    throw std::bad_alloc();
  Message message{*header, std::vector<std::byte>(header->count * size_of(header->dtype))};
  if (message.payload.empty()) return message;
  const auto payload =
      group_.link->recv(peer, payload_slot(setting.greetings, *header, Stage::kOperands),
                        message.payload.data(), message.payload.size());
  if (!wait_interruptibly(*payload, Deadline::after(group_.timeout))) {
    throw Timeout(fmt::format("rank {} began a message and did not finish it", peer), {peer});
  }
  return message;
}

void Mailbox::end(const Failure& failure) {
  {
    const base::Lock lock(mutex_);
    if (stopping_) return;
    failure_ = failure;
  }
  // A peer may leave when it has sent everything. That harms only a caller that asks for more:
  // try_take ends the link then, and not this thread now.
  const bool has_left = failure.kind == ErrorKind::kPeerLost &&
                        failure.ranks == std::vector<int>{group_.members[peer_]};
  if (!has_left) group_.link->fail(failure);
}

void Mailbox::loop() {
  try {
    while (true) {
      {
        base::Lock lock(mutex_);
        while (!stopping_ && kept_.size() >= kMostKept) lock.wait(changed_);
        if (stopping_) return;
      }
      auto message = receive();
      const base::Lock lock(mutex_);
      if (!message) return;
      kept_.push_back(std::move(*message));
    }
  } catch (const Error& error) {
    end(failure_from(error));
  } catch (const std::exception& error) {
    end(failure_of(group_.link->rank(), error));
  }
}

bool Mailbox::try_take(const Buffer& into) {
  base::Lock lock(mutex_);
  if (kept_.empty()) {
    if (!failure_) return false;
    const Failure failure = *failure_;
    lock.unlock();
    group_.link->fail(failure);
    raise(failure);
  }
  const Header expected = message_header(into, taken_);
  const Message& message = kept_.front();
  if (message.header != expected) {
    const Mismatch error(
        fmt::format("rank {} takes {}, but rank {} sent {}", group_.link->rank(),
                    describe(expected), group_.members[peer_], describe(message.header)),
        {group_.link->rank(), group_.members[peer_]});
    group_.link->fail(failure_from(error));
    throw error;
  }
  if (into.count > 0) std::memcpy(into.data, message.payload.data(), message.payload.size());
  kept_.pop_front();
  ++taken_;
  changed_.notify_all();
  return true;
}

}  // namespace lockstep::comm

#include "comm/gloo/gloo_link.h"

#include <fmt/format.h>
#include <gloo/allreduce.h>

#include <new>

#include "comm/gloo/no_sigpipe.h"
#include "flat/fold.h"

namespace lockstep::comm {
namespace {

constexpr Slot kEngineBit = Slot{1} << 63;  // above all slots of Gloo's own collectives
constexpr auto kLastLook = std::chrono::milliseconds(20);

std::string lost_text(int peer) {
  return fmt::format(
      "rank {} was lost without a word: it was killed, or the network between the hosts was cut",
      peer);
}

}  // namespace

class GlooTransfer : public Transfer {
 public:
  GlooTransfer(GlooLink& link, int peer, Direction direction,
               std::unique_ptr<gloo::transport::UnboundBuffer> buffer)
      : link_(link), peer_(peer), direction_(direction), buffer_(std::move(buffer)) {}

  bool wait(Deadline deadline) override {
    try {
      const auto first =
          link_.watchdog_.wait(*buffer_, direction_, peer_, deadline, [this] { return over(); });
      if (first == Watchdog::Verdict::kDone) return true;
      if (first == Watchdog::Verdict::kLate) return false;
      // The peer or this link has ended. The transfer may have been done before that: look once
      // more.
      const auto verdict =
          link_.watchdog_.wait(*buffer_, direction_, peer_, Deadline::after(kLastLook));
      if (verdict == Watchdog::Verdict::kDone) return true;
    } catch (const std::bad_alloc&) {  // no peer's fault
      throw;
    } catch (const std::exception& error) {
      link_.explain(peer_, error.what());
    }
    link_.explain(peer_, "it ended");
  }

  void cancel() override {
    if (direction_ == Direction::kSend) {
      buffer_->abortWaitSend();
    } else {
      buffer_->abortWaitRecv();
    }
  }

 private:
  bool over() const { return link_.failure() || link_.news_.ended(peer_); }

  GlooLink& link_;
  int peer_;
  Direction direction_;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
};

std::shared_ptr<GlooLink> GlooLink::make(std::shared_ptr<gloo::rendezvous::Context> context) {
  return {new GlooLink(std::move(context)), [](GlooLink* link) {
            if (::getpid() == link->pid_) delete link;
          }};
}

GlooLink::GlooLink(std::shared_ptr<gloo::rendezvous::Context> context)
    : context_(std::move(context)),
      told_(context_->size),
      news_(*context_, watchdog_, [this](int peer, const std::optional<Failure>& said) {
        watchdog_.interrupt(peer);
        if (said) answer(peer, *said);
      }) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    told_[peer].receipt_buffer = context_->createUnboundBuffer(&told_[peer].receipt, 1);
    told_[peer].receipt_buffer->recv(peer, kReceiptSlot);
  }
}

GlooLink::~GlooLink() {
  end({ErrorKind::kPeerLost, {rank()}, fmt::format("rank {} has left the world", rank())},
      kLeavePatience);
}

std::unique_ptr<Transfer> GlooLink::post(Direction direction, int peer, Slot slot, void* data,
                                         std::size_t bytes) {
  if (const auto failure = this->failure()) raise(*failure);
  auto buffer = context_->createUnboundBuffer(data, bytes);
  const NoSigpipe no_sigpipe;
  try {
    if (direction == Direction::kSend) {
      buffer->send(peer, kEngineBit | slot);
    } else {
      buffer->recv(peer, kEngineBit | slot);
    }
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    explain(peer, error.what());
  }
  return std::make_unique<GlooTransfer>(*this, peer, direction, std::move(buffer));
}

std::unique_ptr<Transfer> GlooLink::send(int peer, Slot slot, const void* data, std::size_t bytes) {
  // Gloo only reads from the memory of a send.
  return post(Direction::kSend, peer, slot, const_cast<void*>(data), bytes);
}

std::unique_ptr<Transfer> GlooLink::recv(int peer, Slot slot, void* data, std::size_t bytes) {
  return post(Direction::kRecv, peer, slot, data, bytes);
}

std::optional<Failure> GlooLink::failure() const {
  const base::Lock lock(mutex_);
  return failure_;
}

void GlooLink::fail(const Failure& failure) noexcept {
  end(failure, kNoticePatience);
}

void GlooLink::end(const Failure& failure, std::chrono::milliseconds patience) noexcept {
  if (::getpid() != pid_) return;  // a child of fork(): the world is its parent's
  {
    const base::Lock lock(mutex_);
    if (failure_) return;
    failure_ = failure;
  }
  const NoSigpipe no_sigpipe;
  tell(failure, patience);
  watchdog_.interrupt_all();
  try {
    context_->closeConnections();
  } catch (const std::exception&) {
    // A connection that cannot be closed is closed already.
  }
}

void GlooLink::tell(const Failure& failure, std::chrono::milliseconds patience) noexcept {
  if (::getpid() != pid_) return;
  const base::Lock lock(told_mutex_);
  if (told_all_) return;
  told_all_ = true;
  const NoSigpipe no_sigpipe;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    Notice& notice = told_[peer];
    try {
      notice.bytes = encode_notice(failure);
      notice.buffer = context_->createUnboundBuffer(notice.bytes.data(), notice.bytes.size());
      notice.buffer->send(peer, kNoticeSlot);
    } catch (const std::exception&) {
      notice.buffer.reset();  // a peer that is gone need not be told
    }
  }
  const auto deadline = Deadline::after(patience);
  for (int peer = 0; peer < size(); ++peer) {
    Notice& notice = told_[peer];
    try {
      if (notice.buffer)
        watchdog_.wait(*notice.receipt_buffer, Direction::kRecv, kNoRank, deadline);
    } catch (const std::exception&) {
      continue;  // gone meanwhile
    }
  }
}

// Answers a peer that has given up waiting for this worker: this worker tells for whom it waits
// itself, so that the peer can follow the trail.
void GlooLink::answer(int peer, const Failure& said) noexcept {
  const int whom = waits_for_.load(std::memory_order_relaxed);
  const bool blamed = said.kind == ErrorKind::kTimeout && said.ranks == std::vector<int>{rank()};
  if (blamed && whom != kNoRank && whom != peer)
    tell(waiting_failure(rank(), whom, over_network()));
}

std::optional<Failure> GlooLink::heard_from(int peer, Deadline deadline) noexcept {
  if (peer < 0 || peer >= size() || peer == rank())
    return std::nullopt;  // a peer may have named anybody
  return news_.await(peer, deadline);
}

std::optional<Failure> GlooLink::end_of(int peer) const {
  if (!news_.ended(peer)) return std::nullopt;
  if (auto said = news_.await(peer, Deadline::after(std::chrono::nanoseconds(0)))) return said;
  return Failure{ErrorKind::kPeerLost, {peer}, lost_text(peer)};
}

void GlooLink::explain(int peer, const std::string& detail) {
  if (const auto failure = this->failure()) raise(*failure);
  if (const auto said = news_.await(peer, Deadline::after(kNoticePatience))) raise(*said);
  throw PeerLost(fmt::format("{} ({})", lost_text(peer), detail), {peer});
}

void GlooLink::native_all_reduce(const Buffer& data, ReduceOp op, std::uint32_t tag,
                                 Deadline deadline) {
  const NoSigpipe no_sigpipe;
  gloo::AllreduceOptions options(context_);
  const std::size_t element = size_of(data.dtype);
  // Gloo needs only the size of an element. The reduce function knows its type.
  const auto set_output = [&]<typename T>(T* elements) { options.setOutput(elements, data.count); };
  if (element == 8) set_output(static_cast<std::int64_t*>(data.data));
  if (element == 4) set_output(static_cast<std::int32_t*>(data.data));
  if (element == 2) set_output(static_cast<std::int16_t*>(data.data));
  if (element == 1) set_output(static_cast<std::int8_t*>(data.data));
  options.setReduceFunction(
      [dtype = data.dtype, op](void* out, const void* left, const void* right, std::size_t count) {
        flat::combine(dtype, op, left, right, out, count);
      });
  options.setTag(tag);
  options.setTimeout(std::chrono::milliseconds(std::max(1, deadline.left_ms())));
  try {
    gloo::allreduce(options);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    if (const auto failure = this->failure()) raise(*failure);
    if (deadline.expired()) {
      throw Timeout(fmt::format("rank {} timed out in Gloo's own all-reduce of {} {}", rank(),
                                data.count, name(data.dtype)));
    }
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank() && news_.ended(peer)) explain(peer, error.what());
    }
    throw PeerLost(fmt::format("a peer was lost in Gloo's own all-reduce ({})", error.what()));
  }
}

}  // namespace lockstep::comm

#include "comm/gloo/gloo_monitor.h"

#include "comm/gloo/no_sigpipe.h"

namespace lockstep::comm {

GlooMonitor::GlooMonitor(gloo::Context& context, Watchdog& watchdog, OnEnd on_end)
    : context_(context),
      watchdog_(watchdog),
      on_end_(std::move(on_end)),
      news_(context.size),
      peers_(context.size) {
  for (int number = 0; number < context.size; ++number) {
    if (number == context.rank) continue;
    Peer& peer = peers_[number];
    peer.bytes.resize(kNoticeBytes);
    peer.buffer = context.createUnboundBuffer(peer.bytes.data(), peer.bytes.size());
    peer.buffer->recv(number, kNoticeSlot);
  }
  try {
    for (int number = 0; number < context.size; ++number) {
      if (peers_[number].buffer)
        peers_[number].thread = std::thread([this, number] { listen(number); });
    }
  } catch (const std::exception&) {  // a host that allows no more threads
    stop();
    throw;
  }
}

GlooMonitor::~GlooMonitor() {
  stop();
}

void GlooMonitor::stop() {
  {
    const base::Lock lock(mutex_);
    stopping_ = true;
  }
  for (Peer& peer : peers_) {
    if (!peer.thread.joinable()) continue;
    peer.buffer->abortWaitRecv();
    peer.thread.join();
  }
}

void GlooMonitor::listen(int number) {
  Peer& peer = peers_[number];
  std::optional<Failure> said;
  try {
    if (peer.buffer->waitRecv(nullptr, kGlooForever)) {
      said = decode_notice(peer.bytes);
      send_receipt(number);
    }
  } catch (const std::exception&) {
    // The connection broke before the peer could say why.
  }
  {
    const base::Lock lock(mutex_);
    if (stopping_) return;
    news_[number] = {true, said};
    changed_.notify_all();
  }
  on_end_(number, said);
}

void GlooMonitor::send_receipt(int number) {
  const NoSigpipe no_sigpipe;
  char receipt = 1;
  const auto buffer = context_.createUnboundBuffer(&receipt, sizeof receipt);
  buffer->send(number, kReceiptSlot);
  watchdog_.wait(*buffer, Direction::kSend, kNoRank,
                 Deadline::after(std::chrono::milliseconds(200)));
}

bool GlooMonitor::ended(int peer) const {
  const base::Lock lock(mutex_);
  return news_[peer].ended;
}

std::optional<Failure> GlooMonitor::await(int peer, Deadline deadline) const {
  base::Lock lock(mutex_);
  while (!news_[peer].ended && lock.wait_until(changed_, deadline.when())) continue;
  return news_[peer].said;
}

}  // namespace lockstep::comm

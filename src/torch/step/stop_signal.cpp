#include "torch/step/stop_signal.h"

#include <atomic>
#include <csignal>
#include <mutex>

namespace lockstep::steps {
namespace {

std::atomic<bool> come{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");

std::mutex handler_mutex;
int handler_users = 0;

void note_signal(int) {
  come.store(true);
}

}  // namespace

StopSignal::StopSignal() {
  const std::lock_guard lock(handler_mutex);
  if (handler_users++ > 0) return;
  struct sigaction before {};
  ::sigaction(SIGTERM, nullptr, &before);
  if (before.sa_handler != SIG_DFL) return;
  struct sigaction ours {};
  ours.sa_handler = note_signal;
  ours.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &ours, nullptr);
}

StopSignal::~StopSignal() {
  const std::lock_guard lock(handler_mutex);
  if (--handler_users > 0) return;
  struct sigaction now {};
  ::sigaction(SIGTERM, nullptr, &now);
  if (now.sa_handler == note_signal) std::signal(SIGTERM, SIG_DFL);
}

bool StopSignal::has_come() noexcept {
  return come.load();
}

}  // namespace lockstep::steps

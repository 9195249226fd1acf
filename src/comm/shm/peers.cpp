#include "comm/shm/peers.h"

#include <lockstep/errors.h>

#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

namespace lockstep::comm {

Watcher::Watcher(std::vector<Watched> watched, std::function<void(int)> when_dead)
    : watched_(std::move(watched)), when_dead_(std::move(when_dead)), stop_(base::make_pipe()) {
  // Before its thread begins, which could tell nobody that there is no memory.
  std::vector<pollfd> entries{{stop_.read.get(), POLLIN, 0}};
  for (const Watched& one : watched_) entries.push_back({one.pidfd.get(), POLLIN, 0});
  try {
    thread_ = std::thread([this, entries = std::move(entries)]() mutable { run(entries); });
  } catch (const std::system_error&) {
    throw Unavailable("cannot start a thread; raise `ulimit -u`");
  }
}

Watcher::~Watcher() {
  stop_.write.reset();
  thread_.join();
}

void Watcher::run(std::vector<pollfd>& entries) {
  while (true) {
    if (::poll(entries.data(), entries.size(), -1) < 0) {
      if (errno != EINTR)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));  // no memory: again
      continue;
    }
    if (entries[0].revents != 0) return;
    for (std::size_t i = 1; i < entries.size(); ++i) {
      if (entries[i].revents == 0) continue;
      entries[i].fd = -1;
      when_dead_(watched_[i - 1].rank);
    }
  }
}

}  // namespace lockstep::comm

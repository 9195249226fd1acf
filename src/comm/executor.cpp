#include "comm/executor.h"

#include <lockstep/errors.h>

#include <system_error>
#include <utility>

namespace lockstep::comm {

std::thread start_thread(std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error&) {
    throw Unavailable("this host allows no more threads; raise `ulimit -u`, or use fewer channels");
  }
}

Executor::~Executor() {
  if (is_copy()) {
    if (thread_.joinable()) thread_.detach();
    return;
  }
  queue_->stop();
  if (thread_.joinable()) {
    thread_.join();
  } else {
    queue_->run_until_stopped();  // what had begun by itself
  }
}

void Executor::submit(const std::shared_ptr<Operation>& operation) {
  if (!thread_.joinable() && !operation->begun())
    thread_ = start_thread([this] { queue_->run_until_stopped(); });
  operation->queue_in(queue_);
}

}  // namespace lockstep::comm

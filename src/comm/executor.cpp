#include "comm/executor.h"

#include <system_error>

namespace lockstep::comm {

Executor::~Executor() {
  queue_->stop();
  if (thread_.joinable()) {
    thread_.join();
  } else {
    queue_->run_until_stopped();  // what had begun by itself
  }
}

void Executor::submit(const std::shared_ptr<Operation>& operation) {
  if (!thread_.joinable() && !operation->begun()) {
    try {
      thread_ = std::thread([this] { queue_->run_until_stopped(); });
    } catch (const std::system_error&) {
      throw Unavailable(
          "this host allows no more threads; raise `ulimit -u`, or use fewer channels");
    }
  }
  operation->queue_in(queue_);
}

}  // namespace lockstep::comm

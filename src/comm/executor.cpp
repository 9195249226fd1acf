#include "comm/executor.h"

namespace lockstep::comm {

Executor::~Executor() {
  queue_->stop();
  if (thread_.joinable()) thread_.join();
}

void Executor::submit(const std::shared_ptr<Operation>& operation) {
  operation->queue_in(queue_);
  if (!thread_.joinable()) thread_ = std::thread([this] { queue_->run_until_stopped(); });
}

}  // namespace lockstep::comm

#include "torch/replica/pass.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <utility>

namespace lockstep::replica {

Pass::Pass(Parts& parts, Attachment& attachment)
    : parts_(parts),
      attachment_(attachment),
      arrivals_(parts.model, parts.plan, parts.options.missing_gradient) {}

// check() comes first: a parameter of another type or device cannot be taken back, and the error
// must come before its gradient is added up.
void Pass::before(std::size_t entry) {
  parts_.banks->in_use().check(entry);
  if (!active_) begin();
}

void Pass::start(bool reduces) {
  arrivals_.begin_pass();
  active_ = true;
  reduces_ = reduces;
  if (reduces) clock_.begin();
}

void Pass::arrive(std::size_t entry, const torch::Tensor& incoming) {
  parts_.banks->in_use().adopt(entry, incoming);
  arrivals_.mark(entry);
}

// The gradient of a moved parameter may have had no hook. It arrives here, at the end of the pass.
void Pass::take_back_moved() {
  for (const std::size_t entry : attachment_.take_back_moved()) {
    if (!arrivals_.has(entry)) arrive(entry, {});  // else an old graph has kept the hook
  }
}

void Pass::launch(std::size_t bucket, double factor, const Sharded* sharded) {
  clock_.launched(parts_.reduction->travels(), !arrivals_.complete());
  parts_.reduction->launch(parts_.plan.buckets[bucket], sharded,
                           {.factor = factor, .algorithm = parts_.options.algorithm});
}

void Pass::launch_rest(double factor, const Sharded* sharded) {
  while (parts_.reduction->launched() < parts_.plan.buckets.size())
    launch(parts_.reduction->launched(), factor, sharded);
}

void ShardPass::begin_run(std::optional<Sharded> sharded) {
  sharded_ = std::move(sharded);
  divisor_.reset();
  under_way_.reset();
  active_ = false;
  ran_ = false;
  arrivals_.forget();
  attachment_.tell(*this);
}

// If a missing gradient is an error, every pass must have all gradients, so each begins with none
// reached. Otherwise the error would depend on which shards a worker hosts.
void ShardPass::begin() {
  if (!std::exchange(awaited_, false)) {
    throw BadInput(fmt::format(
        "a backward pass that is not the Step's own has reached {}: return the loss and leave "
        "backward() to the Step; for gradients inside of the loss call torch::autograd::grad(), "
        "for activation checkpointing lockstep::checkpoint()",
        attachment_.name()));
  }
  if (divisor_) attachment_.check_module();  // before anything is sent
  attachment_.call_at_end();
  start(divisor_.has_value());
  if (!parts_.may_be_absent()) arrivals_.forget();
  ran_ = true;
}

void ShardPass::ready(std::size_t entry, const torch::Tensor& incoming) {
  if (!active_) begin();
  arrive(entry, incoming);
  if (!reduces_) return;
  if (parts_.reduction->early()) {
    while (const auto bucket = arrivals_.next_ready()) launch(*bucket, 1 / *divisor_, sharded());
  }
  if (arrivals_.complete()) clock_.last_gradient();
}

void ShardPass::end() {
  take_back_moved();
  arrivals_.check_complete();
  if (reduces_) send();
  active_ = false;
}

void ShardPass::send() {
  under_way_ = parts_.banks->present(arrivals_.reached());
  parts_.banks->in_use().complete();
  parts_.reduction->look();
  launch_rest(1 / *divisor_, sharded());
  if (waits_ == Waits::kAtEnd) complete();
}

void ShardPass::complete() {
  if (!under_way_) return;
  if (waits_ == Waits::kInComplete) clock_.last_gradient();  // so only this wait is exposed
  const auto has = *std::exchange(under_way_, std::nullopt);
  if (parts_.may_be_absent()) parts_.banks->find_absent(parts_.comm, has);
  parts_.reduction->wait();
  parts_.banks->hide_absent();
  arrivals_.forget();
  ran_ = false;
  divisor_.reset();
  clock_.end();
}

void ShardPass::reduce(double divisor, Waits waits) {
  reduce_next(divisor, waits);
  start(true);
  parts_.banks->in_use().look_again();
  send();
  active_ = false;
}

void ShardPass::finish_unreduced() {
  if (ran_) arrivals_.check_complete();
  const auto has = parts_.banks->present(arrivals_.reached());
  parts_.banks->in_use().settle();
  if (parts_.may_be_absent()) parts_.banks->find_absent(parts_.comm, has);
  arrivals_.forget();
  ran_ = false;
}

}  // namespace lockstep::replica

// An asynchronous round of workers that share no memory. Each owns a slice of the weights and of the optimizer's state, so nobody
// has to serve all of them. One of them is also the clerk, who gives out tasks and says in which order owners do what
// (plan/clerk.h).
//
//   worker   asks the clerk for a task and for weights, gets a slice from each owner, computes, sends each owner its slice of
//            the gradient
//   owner    follows the clerk's log: gives its slice to a worker, or updates it with a gradient
//
// A thread of each worker is owner and clerk while the worker computes (courier.h). At the end of the round all slices go to
// everybody.
#include <lockstep/errors.h>

#include <optional>
#include <utility>

#include "control/faults.h"
#include "torch/optim/impl.h"
#include "torch/replica/replicated.h"
#include "torch/replica/tensors.h"
#include "torch/step/asynchronous_round.h"
#include "torch/step/courier.h"

namespace lockstep::steps {
namespace {

using Bytes = Letterbox::Bytes;

class SentRound : public AsynchronousRound {
 public:
  explicit SentRound(Setting setting);

  std::optional<plan::Task> claim() override;
  void take(const plan::Task& task) override;
  void give(Computed computed) override;
  Ended end() override;

 private:
  Cut cut() const;
  std::vector<Bytes> parts_of(const RoundTraining::Gradient& gradient) const;
  void put_state(const std::vector<SliceMemory>& states);

  Setting its_;
  Comm& comm_;
  optim::Trained& trained_;  // of the inner optimizer
  Cut cut_;
  // What this worker takes.
  SliceMemory weights_;
  Bytes buffers_;
  std::optional<RoundReports> pending_;  // of the last task: whether it counts is not known yet
  RoundReports reports_;
  Courier courier_;
};

// The model has the weights with which the round begins, before the courier copies them.
SentRound::SentRound(Setting setting)
    : its_([&] {
        setting.model.open_round();
        setting.training.begin();
        return std::move(setting);
      }()),
      comm_(its_.model.channel()),
      trained_(optim::inside(its_.model.inner()).trained),
      cut_(cut()),
      weights_(cut_.bytes),
      courier_(its_, cut_, comm_) {}

// The program may have begun to clip since the LocalModel was made.
Cut SentRound::cut() const {
  if (its_.tasks.rule().backups > 0 && trained_.extras.clip_norm > 0) refuse_to_clip_a_mean();
  Cut cut{.slices = slices_of(trained_.model->parts().plan, comm_.size()),
          .bytes = trained_.model->layout().bytes(),
          .compensates = its_.tasks.rule().delay_compensation > 0};
  for (const auto& [name, tensor] : trained_.model->model().buffers) cut.buffers += tensor.nbytes();
  return cut;
}

std::optional<plan::Task> SentRound::claim() {
  const plan::Clerk::Answer answer = courier_.ask();
  if (pending_ && !answer.was_dropped) {
    reports_.next_step();
    pending_->hand_on(reports_);
  }
  pending_.reset();
  if (answer.task < 0) return std::nullopt;
  return its_.tasks.task(answer.task);
}

void SentRound::take(const plan::Task& task) {
  courier_.take(its_.tasks.number(task), weights_, buffers_);
  its_.training.show(weights_.data(), buffers_);
}

void SentRound::give(Computed computed) {
  const RoundTraining::Gradient& gradient = computed.gradient;
  // With backups the mean of a step is divided at its owners.
  const bool adds = its_.tasks.rule().backups > 0;
  const double factor = adds ? 1 : its_.training.factor_of(gradient.values, 1);
  auto parts = parts_of(gradient);
  its_.training.release();
  pending_ = std::move(computed.reports);
  courier_.give(its_.tasks.number(computed.task), factor, computed.loss, std::move(parts));
  control::Faults::here().strike("update", its_.tasks.steps().first + computed.task.step);
}

std::vector<Bytes> SentRound::parts_of(const RoundTraining::Gradient& gradient) const {
  std::vector<Bytes> parts;
  for (int owner = 0; owner < comm_.size(); ++owner) {
    const Slice& slice = cut_.of(owner);
    Bytes& part = parts.emplace_back();
    part.reserve(cut_.sent_to(owner));
    part.assign(gradient.values + slice.begin, gradient.values + slice.end);
    if (cut_.compensates)
      part.insert(part.end(), gradient.weights + slice.begin, gradient.weights + slice.end);
    if (cut_.buffers_of(owner) > 0)
      part.insert(part.end(), gradient.buffers.begin(), gradient.buffers.end());
  }
  return parts;
}

AsynchronousRound::Ended SentRound::end() {
  const plan::TaskLoss loss = courier_.end();
  SliceOwner& owner = courier_.owner();
  owner.gather(comm_);
  its_.training.show(owner.weights(), owner.buffers());
  if (its_.model.writes_state()) put_state(owner.states());
  return {loss, courier_.order(), std::move(reports_)};
}

void SentRound::put_state(const std::vector<SliceMemory>& states) {
  const auto after = its_.model.state_after();
  const auto& entries = trained_.model->layout().entries();
  for (std::size_t state = 0; state < states.size(); ++state) {
    for (std::size_t entry = 0; entry < entries.size(); ++entry) {
      const torch::Tensor& to = after[state * entries.size() + entry];
      to.copy_(tensor_at(states[state].data() + entries[entry].offset, to));
    }
  }
}

}  // namespace

std::unique_ptr<AsynchronousRound> make_sent_round(AsynchronousRound::Setting setting) {
  return std::make_unique<SentRound>(std::move(setting));
}

}  // namespace lockstep::steps

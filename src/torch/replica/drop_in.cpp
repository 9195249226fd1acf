#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch/replica/pass.h"

namespace lockstep::replica {
namespace {

// What a worker announces of a synchronised pass. All workers compare all notes before they use the
// averages.
struct PassNote {
  std::uint64_t replica = 0;        // by the order in which replicas were made
  std::uint64_t pass = 0;           // counts the synchronised passes of the replica, from 1
  std::array<double, 3> weights{};  // DropIn::Since::weights of this worker
  std::uint64_t sample = 0;         // a WeightSample; 0: none was taken

  control::Record record() const {
    control::Record record{replica, pass};
    for (std::size_t i = 0; i < weights.size(); ++i)
      record[2 + i] = std::bit_cast<std::uint64_t>(weights[i]);
    record[5] = sample;
    return record;
  }
  static PassNote of(const control::Record& record) {
    PassNote note{record[0], record[1], {}, record[5]};
    for (std::size_t i = 0; i < note.weights.size(); ++i)
      note.weights[i] = std::bit_cast<double>(record[2 + i]);
    return note;
  }
};

// The ranks whose note differs from rank 0's in one member.
template <typename Member>
std::vector<int> others(const std::vector<PassNote>& notes, Member PassNote::*member) {
  std::vector<int> ranks;
  for (std::size_t r = 1; r < notes.size(); ++r) {
    if (notes[r].*member != notes[0].*member) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

// The error if a note differs from rank 0's; its ranks are the same on every worker. `model` names
// the replica of this worker.
std::optional<Mismatch> difference_of(const std::vector<PassNote>& notes,
                                      const std::string& model) {
  if (const auto ranks = others(notes, &PassNote::replica); !ranks.empty()) {
    return Mismatch(
        fmt::format("workers synchronise different models: rank 0 synchronises replica {}, {} "
                    "replica {} ({} here); make replicas in the same order on every worker, and "
                    "run their backward passes in the same order",
                    notes[0].replica, ranks_text(ranks),
                    notes[static_cast<std::size_t>(ranks.front())].replica, model),
        ranks);
  }
  if (const auto ranks = others(notes, &PassNote::sample); !ranks.empty()) {
    return Mismatch(
        fmt::format(
            "the weights of {} differ between rank 0 and {} at backward pass {}: an optimizer "
            "took another step there (another learning rate, a step more or fewer), or only "
            "some workers loaded or changed parameters; do the same on every worker, or use "
            "lockstep::optim and lockstep::load",
            model, ranks_text(ranks), notes[0].pass),
        ranks);
  }
  return std::nullopt;
}

}  // namespace

DropIn::DropIn(Parts& parts, Attachment& attachment, Identity identity)
    : Pass(parts, attachment), identity_(std::move(identity)) {
  if (parts.options.check_weights && parts.comm.size() > 1) sample_ = weight_sample_of(parts);
  forget();
}

void DropIn::ready(std::size_t entry, const torch::Tensor& incoming) {
  if (!active_) {
    check_pending(entry);
    begin();
    check_cleared(entry);
  }
  arrive(entry, incoming);
  if (!reduces_) return;
  if (parts_.reduction->early()) launch_ready();
  if (arrivals_.complete()) clock_.last_gradient();
}

void DropIn::begin() {
  const bool synchronised = suspended_ == 0;
  if (synchronised) attachment_.check_module();  // before anything is sent
  parts_.banks->in_use().untangle();             // other gradients will be added to these
  attachment_.call_at_end();
  start(synchronised);
  notes_ = {};
  if (idle() && !since_.before_idle)
    since_.before_idle = parts_.banks->present(arrivals_.reached());
  add_weight();
  if (synchronised && parts_.reduction->early()) say_note();
}

void DropIn::add_weight() {
  if (!idle()) since_.weights[0] += weight_.value_or(0);
  since_.weights[weight_ ? 1 : 2] += 1;
}

void DropIn::end() {
  take_back_moved();
  if (reduces_) {
    arrivals_.check_complete();
    if (parts_.options.missing_gradient == MissingGradient::kStatic)
      arrivals_.check_graph(always_absent_);
    finish();
  } else if (since_.weights[1] > 0) {
    since_.pending = parts_.banks->in_use().versions();
  }
  active_ = false;
}

void DropIn::launch_ready() {
  while (const auto divisor = known_divisor()) {
    const auto bucket = arrivals_.next_ready();
    if (!bucket) return;
    launch(*bucket, 1 / *divisor, nullptr);
  }
}

void DropIn::finish() {
  Banks& banks = *parts_.banks;
  auto has = since_.before_idle ? *since_.before_idle : banks.present(arrivals_.reached());
  banks.in_use().complete();
  const bool with_buffers = parts_.buffers_follow_backward();
  const bool early = parts_.reduction->early();
  const control::Presence presence = turns().presence(parts_.comm.size());
  if (with_buffers && !early) parts_.buffers->start(parts_.comm, presence);
  say_note();
  launch_rest(1 / divisor(), nullptr);
  // After all buckets: how many of them went before the end differs between workers.
  if (with_buffers && early) parts_.buffers->start(parts_.comm, presence);
  if (!early) banks.share_averages(parts_.comm);
  if (parts_.may_be_absent()) find_absent(std::move(has));
  if (with_buffers) parts_.buffers->finish(parts_.comm, presence);
  parts_.reduction->wait(Reduction::Met::kYes);
  banks.hide_absent();
  const auto weights = since_.weights;
  forget();
  since_.averaged = banks.in_use().versions();
  clock_.end();
  active_ = false;
  check_weights(weights);
}

void DropIn::find_absent(std::vector<std::uint8_t> has) {
  if (!always_absent_.empty()) return parts_.banks->set_absent(always_absent_);
  parts_.banks->find_absent(parts_.comm, std::move(has));
  if (parts_.options.missing_gradient == MissingGradient::kStatic)
    always_absent_ = parts_.banks->absent();
}

// If buckets go early, it is said before the first: the note travels ahead of the gradients, so that
// the divisor is known early. Else it is said when all gradients of this worker are there, so that
// who has heard all notes may read the gradients of all.
void DropIn::say_note() {
  if (notes_.all) return;
  notes_.plain = since_.weights[2] > 0;
  ++identity_.passes;
  const PassNote note{identity_.number, identity_.passes, since_.weights,
                      sample_ ? sample_->take(identity_.passes) : 0};
  parts_.reduction->look();
  notes_.all = identity_.announcements->say(note.record(), "backward()");
}

// Waits for all notes, and compares them.
const std::vector<control::Record>& DropIn::compared(const control::Announcement& said) {
  said.wait();
  std::vector<PassNote> notes;
  for (const control::Record& record : said.records()) notes.push_back(PassNote::of(record));
  if (const auto difference = difference_of(notes, attachment_.name()))
    identity_.announcements->disagree(*difference);
  return said.records();
}

// The same, and adds up their weights.
void DropIn::hear_notes() {
  if (std::exchange(notes_.heard, true)) return;
  const std::vector<control::Record>& records = compared(*notes_.all);
  since_.weights = {};
  for (const control::Record& record : records) {
    const PassNote note = PassNote::of(record);
    for (std::size_t i = 0; i < note.weights.size(); ++i) since_.weights[i] += note.weights[i];
  }
}

// The divisor of the sum, if it is known yet. A worker whose passes had no weights does not wait
// for the notes: it takes the others' passes for the same. If that is wrong, check_weights() throws
// on all.
std::optional<double> DropIn::known_divisor() {
  say_note();
  if (notes_.plain) return turns().divisor(parts_.comm.size());
  return notes_.all->complete() ? std::optional(divisor()) : std::nullopt;
}

double DropIn::divisor() {
  hear_notes();
  const auto [sum, weighted, plain] = since_.weights;
  if (weighted > 0 && sum > 0) return sum;
  turns().presence(parts_.comm.size());  // waits until all have spoken
  return turns().divisor(parts_.comm.size()).value();
}

// Nothing is added up any more: after an average, or because gradients were cleared.
void DropIn::forget() {
  since_.weights = {};
  since_.pending.clear();
  since_.before_idle.reset();
  arrivals_.forget();
}

void DropIn::synchronize() {
  if (active_) throw BadInput("synchronize() inside a backward pass: call it after the pass");
  start(true);
  notes_ = {};
  parts_.banks->in_use().untangle();
  parts_.banks->in_use().look_again();
  finish();
}

// All meet twice: before anybody reads what the source has left in shared memory, and after.
void DropIn::sync_buffers() {
  if (active_) throw BadInput("sync_buffers() inside a backward pass: call it after the pass");
  const control::Presence presence = turns().presence(parts_.comm.size());
  parts_.buffers->start(parts_.comm, presence);
  compared(*identity_.announcements->say(PassNote{identity_.number}.record(), "sync_buffers()"));
  parts_.buffers->finish(parts_.comm, presence);
  parts_.comm.barrier().wait();
}

void DropIn::before_forward() {
  if (parts_.options.buffers != BufferSource::kLeaderBeforeForward) return;
  if (forward_syncs_) sync_buffers();
  forward_syncs_ = suspended_ == 0 && at::GradMode::is_enabled();
}

void DropIn::zero_grad() {
  if (active_ && reduces_ && parts_.comm.size() > 1) {
    throw BadInput(
        "a synchronised backward pass was broken off on this worker, and the others wait for its "
        "gradients: end this worker");
  }
  if (std::exchange(active_, false)) parts_.reduction->wait();
  forget();
  since_.averaged.clear();
  parts_.banks->forget_absent();
  parts_.banks->in_use().clear();
}

void DropIn::start_over() {
  active_ = false;
  forget();
  since_.averaged.clear();
  attachment_.tell(*this);
}

void DropIn::check_averaged() const {
  if (since_.weights[1] + since_.weights[2] == 0) return;
  throw BadInput(
      "gradients were added up in no_sync() and not averaged: leave the last backward() outside "
      "of it, or call model.synchronize(), before the step");
}

// A weighted pass must not add to an average, because the sum is divided once more at the end.
// `entry` has the first gradient of the pass. If its version is one higher than after the average,
// autograd has added to the average; otherwise the program has cleared or replaced it.
void DropIn::check_cleared(std::size_t entry) const {
  if (since_.averaged.empty() || since_.weights[1] == 0) return;
  if (parts_.banks->in_use().version(entry) != since_.averaged[entry] + 1) return;
  throw BadInput(
      "lockstep::backward(loss, samples) would add to averages of the step before: call "
      "zero_grad() "
      "first. If a step has several passes, put all but the last into no_sync(), or add up their "
      "losses");
}

// A weighted sum of no_sync() is divided by its weights at the end. If the program cleared or
// changed it since, the weights are wrong. `entry` has the first gradient of the pass that adds to
// the sum.
void DropIn::check_pending(std::size_t entry) const {
  if (since_.pending.empty() || since_.pending[entry] < 0) return;
  if (parts_.banks->in_use().version(entry) == since_.pending[entry] + 1) return;
  throw BadInput(
      "gradients that lockstep::backward(loss, samples) had added up in no_sync() were cleared or "
      "changed before they were averaged: clear them with model.zero_grad(), which also forgets "
      "the weights of their samples");
}

// Comes after the reduction, because a worker that left before it would let the others wait.
void DropIn::check_weights(const std::array<double, 3>& weights) {
  const auto [sum, weighted, plain] = weights;
  if (weighted > 0 && plain > 0) {
    throw BadInput(
        "loss.backward() and lockstep::backward(loss, samples) were mixed in one step: use one of "
        "them on all workers, for all batches of a step");
  }
  if (weighted > 0 && sum <= 0)
    throw BadInput("no worker has a sample in this step: nothing to average");
}

}  // namespace lockstep::replica

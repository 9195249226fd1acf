// When a job writes checkpoints, and when it waits for them.
//
// The leader's thread writes while the job trains. One write is under way at most: the next one waits for it. Two things
// are the leader's to say, its clock and the end of a write, and both travel with the numbers of a phase (PhaseResult). So
// all workers begin a checkpoint after the same batch, and hear of a write that failed at the same place.
#include <lockstep/errors.h>

#include <algorithm>

#include "control/faults.h"
#include "torch/step/job_core.h"

namespace lockstep::steps {

// Copies the state, unless this position is saved already.
void JobCore::begin_checkpoint() {
  if (progress_.running || progress_.partial) {
    throw BadInput(
        "a step of the job has failed, or its loop was left by an exception between two Steps of a "
        "batch: the models are in the middle of a batch. Make the job again; it goes on from its "
        "last checkpoint");
  }
  settle();
  progress_.asked.checkpoint = false;
  const std::int64_t step = position();
  if (!checkpoints_ || setup_.only_reads || saved_at() == step) return;
  if (progress_.loop != nullptr) checked([&] { progress_.loop->check_at_rest(step - 1); });
  note_streams(step);
  repeated([&] {
    if (checkpoints_->is_under_way()) finish_checkpoint();
    if (saved_at() == step) return;  // a worker was lost when all but some knew
    control::Faults::here().strike("checkpoint", step);
    for (JobModels::Trained& trained : models_.trained) {
      trained.model.complete_codec();
      if (trained.local && trained.is_first_fragment()) trained.local->complete();
    }
    checkpoints_->begin(state_, step, with_data(properties(), data_.record));
    progress_.asked.written = false;
  });
}

// Waits until the checkpoint under way is on the disk. Collective.
void JobCore::finish_checkpoint() {
  progress_.asked.written = false;
  checkpoints_->finish();
  const std::int64_t step = checkpoints_->on_disk();
  std::erase_if(calls_, [step](const Call& call) { return call.step < step; });
  if (hooks_.on_saved) hooks_.on_saved(checkpoints_->path(), step);
}

void JobCore::save() {
  if (progress_.legacy) return;  // the models do not have the state of this position yet
  do {
    begin_checkpoint();
    repeated([this] {
      if (checkpoints_ && checkpoints_->is_under_way()) finish_checkpoint();
    });
    // The leader that wrote it may have been lost. Then it counts as never begun.
  } while (checkpoints_ && !setup_.only_reads && saved_at() != position());
}

// Between two batches.
void JobCore::save_if_due(const GlobalBatch& batch) {
  const JobOptions& options = setup_.options;
  bool due = batch.ends_epoch();
  if (const std::int64_t every = options.checkpoint_every_steps; every > 0)
    due = progress_.next / every > batch.step() / every;
  if (options.checkpoint_every_seconds > 0) due = progress_.asked.checkpoint;
  if (due) return begin_checkpoint();
  repeated([this] {
    if (progress_.asked.written && checkpoints_->is_under_way()) finish_checkpoint();
  });
}

std::int64_t JobCore::saved_at() const {
  return checkpoints_ ? checkpoints_->begun() : -1;
}

// For what goes on from here: a checkpoint, the next loop, a worker that joins.
void JobCore::note_streams(std::int64_t step) {
  if (!data_.streams) return;
  data_.positions->note(*data_.streams, plan(), step, generation_.hosted, generation_.control);
}

void JobCore::restore() {
  if (!resumes(setup_.options)) return;
  const std::int64_t step = checkpoints_->read(state_, properties());
  if (step < 0) return;
  for (ModelView& model : models_.all) model.share_values();
  data_.record = continued(generation_.control, setup_.options.checkpoint, data_.record);
  progress_.next = step;
}

}  // namespace lockstep::steps

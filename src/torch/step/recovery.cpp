// What a job does when workers are lost in a phase, and when others wait to join.
//
//   regroup    the workers that survive form the next generation (World::regroup)
//   settle     they look at the commit page, which is in memory that outlives the dead: was the phase committed, or has
//              somebody begun to write? Then the first of them writes what nobody has written (StepRun::finish)
//   move       models, optimizers and the job go to the new generation. A worker that joins constructs them meanwhile
//   go on      with the next phase, or with this one again: a phase that nobody has begun to write has changed nothing
//
// If another worker is lost meanwhile, all of it begins again, and what is settled stays so.
#include <lockstep/errors.h>

#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "control/faults.h"
#include "torch/step/job_core.h"

namespace lockstep::steps {

// On a GPU nothing outlives a process. Streams are read by one worker each, which knows their positions. A wrapped
// optimizer computes values that only its own worker has.
bool JobCore::can_recover() const {
  Loop* const loop = progress_.loop;
  if (loop == nullptr || !generation_.world.elastic() || data_.streams) return false;
  const CommitPage* const page = loop->commit_page();
  return page != nullptr && page->shared() &&
         std::all_of(steps_.begin(), steps_.end(),
                     [&](const auto& step) { return loop->run_of(*step).can_recover(); });
}

namespace {

Comm survivors_of(World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.survivors()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.comm().split(ranks);
}

int largest(Comm& comm, int own) {
  std::int64_t number = own;
  comm.all_reduce({&number, 1, DType::kInt64}, {.op = ReduceOp::kMax}).wait();
  return static_cast<int>(number);
}

// 0: not known yet.
int code_of(CommitPage::Fate fate) {
  switch (fate) {
    case CommitPage::Fate::kNothing:
      return 1;
    case CommitPage::Fate::kCommitted:
      return 2;
    default:
      return 0;
  }
}

}  // namespace

// `known`: what an earlier attempt has found; kIntended: nothing yet. All survivors get the same answer: kNothing or
// kCommitted.
CommitPage::Fate JobCore::settle_phase(Comm& survivors, StepRun& run, const Phase& phase,
                                       CommitPage::Fate known) {
  using Fate = CommitPage::Fate;
  int found = largest(survivors, code_of(known));
  if (found == 0) {
    Fate fate = progress_.loop->commit_page()->fate(phase.step, phase.number);
    if (survivors.rank() == 0 && fate == Fate::kIntended) {
      run.finish();
      fate = Fate::kCommitted;
    }
    found = largest(survivors, survivors.rank() == 0 ? code_of(fate) : 0);
  }
  return found == 2 ? Fate::kCommitted : Fate::kNothing;
}

// The numbers of the phase before, which was committed: they may have been lost on their way.
void JobCore::rescue_numbers() {
  if (!numbers_.pending) return;
  try {
    numbers_.pending->wait();
  } catch (const Error&) {
    numbers_.pending->rescue(progress_.loop->commit_page()->losses());
    numbers_.checks.clear();
  }
}

void JobCore::regroup(bool in_batch, std::int64_t step, const Settle& settle) {
  World world = control::handle_on(generation_.world);
  auto inventory = generation_.inventory;
  Loop& loop = *progress_.loop;
  rescue_numbers();
  progress_.regroups = true;
  while (true) {
    control::Faults::here().strike("regroup", step);
    world.regroup(in_batch);
    try {
      Comm survivors = survivors_of(world);
      settle(survivors);
      loop.close();
      inventory->move_to(world);
      inventory = world.inventory();
      prepare(data_.dataset, data_.options, data_.more);
      catch_up();
      loop.reopen(step);
      break;
    } catch (const PeerLost& lost) {
      base::log(base::LogLevel::kInfo, "regroups again: {}", lost.what());
    } catch (const Timeout& late) {
      base::log(base::LogLevel::kInfo, "regroups again: {}", late.what());
    }
    inventory = world.inventory();
  }
  progress_.regroups = false;
  numbers_.checks.clear();
}

// Null: the phase is to be repeated. Newcomers have to wait for the next batch: this one may have phases behind it.
std::shared_ptr<PhaseResult> JobCore::recover(const StepCore& step, const Phase& phase) {
  using Fate = CommitPage::Fate;
  Fate fate = Fate::kIntended;  // not known yet
  std::shared_ptr<PhaseResult> result;
  Loop& loop = *progress_.loop;
  regroup(true, phase.step, [&](Comm& survivors) {
    if (fate != Fate::kIntended) {
      largest(survivors, code_of(fate));
      return;
    }
    StepRun& run = loop.run_of(step);
    fate = settle_phase(survivors, run, phase, fate);
    if (fate == Fate::kNothing) return loop.restore_buffers();
    run.complete();
    result = run.rescued(phase);
  });
  if (result) collect();  // the numbers of the phase before
  base::log(base::LogLevel::kInfo, "{} workers go on at step {}, which was {}", generation_.size(),
            phase.step, result ? "finished" : "begun again");
  return result;
}

void JobCore::recover_at_rest() {
  // If the batch is done, the reader has ended it already.
  regroup(true, std::max(progress_.loop->current().step(), progress_.next), [](Comm&) {});
}

void JobCore::join_newcomers() {
  settle();
  progress_.newcomers = false;
  regroup(false, progress_.next, [](Comm&) {});
}

}  // namespace lockstep::steps

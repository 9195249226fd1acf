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
#include <utility>

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

using Fate = CommitPage::Fate;

Comm survivors_of(World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.survivors()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.comm().split(ranks);
}

// Where the survivors are, by rank. Each fills in its own number.
std::vector<std::int64_t> of_all(Comm& survivors, std::int64_t own) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(survivors.size()));
  all[static_cast<std::size_t>(survivors.rank())] = own;
  survivors.all_reduce({all.data(), all.size(), DType::kInt64}, {.op = ReduceOp::kMax}).wait();
  return all;
}

// A place in the job as a number that grows: a phase, and whether the worker is before it (kAtRest), in it (kInPhase), or
// knows its fate already, because an earlier attempt to regroup got so far (kKnown).
enum State : std::int64_t { kAtRest, kInPhase, kKnown };
constexpr std::int64_t kStates = 4;
constexpr std::int64_t kMostPhases = 1 << 20;

std::int64_t place_of(const Phase& phase, State state) {
  return (phase.step * kMostPhases + phase.number) * kStates + state;
}

}  // namespace

// What became of the phase in which the furthest survivors are. The first of them that does not know yet looks at the
// commit page, and finishes the phase if somebody has begun to write. A survivor that is behind them is in a phase that
// was committed: nobody gets further before that. Collective among the survivors, all of them, wherever they are.
Fate JobCore::settle_phase(Comm& survivors, const InPhase& own) {
  const State state = own.run == nullptr ? kAtRest : own.known ? kKnown : kInPhase;
  const std::int64_t here = place_of(own.phase, state);
  const auto all = of_all(survivors, here);
  const std::int64_t furthest = *std::max_element(all.begin(), all.end()) / kStates;
  const auto is_there = [&](std::int64_t place, State wanted) {
    return place == furthest * kStates + wanted;
  };
  const auto count = [&](State wanted) {
    return std::count_if(all.begin(), all.end(),
                         [&](std::int64_t place) { return is_there(place, wanted); });
  };
  Fate fate = here / kStates < furthest ? Fate::kCommitted : own.known.value_or(Fate::kNothing);
  if (count(kInPhase) + count(kKnown) == 0) return fate;  // all are at rest
  const auto first = std::find_if(all.begin(), all.end(), [&](std::int64_t place) {
    return is_there(place, count(kKnown) > 0 ? kKnown : kInPhase);
  });
  const bool decides = first - all.begin() == survivors.rank();
  if (decides && !own.known) {
    fate = progress_.loop->commit_page()->fate(own.phase.step, own.phase.number);
    if (fate == Fate::kIntended) {
      own.run->finish();
      fate = Fate::kCommitted;
    }
  }
  const auto said = of_all(survivors, decides && fate == Fate::kCommitted ? 1 : 0);
  if (here / kStates < furthest) return Fate::kCommitted;
  const bool committed = std::count(said.begin(), said.end(), 1) > 0;
  if (committed && own.run != nullptr && !own.known)
    progress_.loop->commit_page()->fate(own.phase.step, own.phase.number);  // takes its token
  return committed ? Fate::kCommitted : Fate::kNothing;
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
      const auto before =
          std::exchange(inventory, world.inventory());  // it has all of them, also if this fails
      before->move_to(world);
      prepare(data_.dataset, data_.options, data_.more);
      catch_up();
      loop.reopen(step);
      break;
    } catch (const PeerLost& lost) {
      base::log(base::LogLevel::kInfo, "regroups again: {}", lost.what());
    } catch (const Timeout& late) {
      base::log(base::LogLevel::kInfo, "regroups again: {}", late.what());
    }
  }
  progress_.regroups = false;
  numbers_.checks.clear();
}

// Null: the phase is to be repeated. Newcomers have to wait for the next batch: this one may have phases behind it.
std::shared_ptr<PhaseResult> JobCore::recover(const StepCore& step, const Phase& phase) {
  std::shared_ptr<PhaseResult> result;
  Loop& loop = *progress_.loop;
  InPhase own{phase, &loop.run_of(step), std::nullopt};
  regroup(true, phase.step, [&](Comm& survivors) {
    const Fate fate = settle_phase(survivors, own);
    if (std::exchange(own.known, fate)) return;
    if (fate == Fate::kNothing) return loop.restore_buffers();
    own.run->complete();
    result = own.run->rescued(phase);
  });
  if (result) collect();  // the numbers of the phase before
  base::log(base::LogLevel::kInfo, "{} workers go on at step {}, which was {}", generation_.size(),
            phase.step, result ? "finished" : "begun again");
  return result;
}

// Between two phases. Others may be in the next one already.
void JobCore::recover_at_rest() {
  // If the batch is done, the reader has ended it already.
  regroup_at_rest(true, std::max(progress_.loop->current().step(), progress_.next));
}

void JobCore::join_newcomers() {
  settle();
  progress_.newcomers = false;
  regroup_at_rest(false, progress_.next);
}

void JobCore::regroup_at_rest(bool in_batch, std::int64_t step) {
  const Phase next = progress_.loop->phase_to_come(progress_.next);
  regroup(in_batch, step, [&](Comm& survivors) {
    settle_phase(survivors, {next, nullptr, std::nullopt});
  });
}

}  // namespace lockstep::steps

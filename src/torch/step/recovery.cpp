// What a job does when workers are lost in a phase, and when others wait to join.
//
//   regroup    the workers that survive form the next generation (World::regroup)
//   settle     they look at their commit pages, which are in memory that outlives the dead: was the phase committed there,
//              or has somebody begun to write? Then one of them writes what nobody has written (StepRun::finish)
//   move       models, optimizers and the job go to the new generation. A worker that joins constructs them meanwhile
//   catch up   workers on whose host the phase was not committed take the state of one on whose host it was
//   go on      with the next phase, or with this one again: a phase that nobody has begun to write has changed nothing
//
// If another worker is lost meanwhile, all of it begins again, and what is settled stays so.
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <signal.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "control/faults.h"
#include "control/legacy.h"
#include "torch/step/job_core.h"
#include "torch/step/rescue.h"

namespace lockstep::steps {

// Streams are read by one worker each, which knows their positions; the error feedback of a shard is known to its worker, and
// so is the state of its local steps, where workers share no memory.
bool JobCore::can_recover() const {
  Loop* const loop = progress_.loop;
  for (const JobModels::Trained& trained : models_.trained) {
    if (trained.model.keeps_codec_state()) return false;
    if (trained.local && trained.local->can_lose_state()) return false;
  }
  return loop != nullptr && generation_.world.elastic() && !data_.streams &&
         loop->commit_page() != nullptr && loop->own_weights() != Loop::OwnWeights::kSome;
}

// Where this worker was when it lost another one: in a phase, or between two (without a run). What it finds out on the
// way stays true in the next attempt, when the loop was closed already.
struct JobCore::Broken {
  Phase phase;
  StepRun* run = nullptr;  // until the loop is closed
  std::int64_t page = 0;   // the commit page of this worker
  // What became of the phase on this page, and the last phase that was committed there; empty: not known yet.
  std::optional<bool> committed = {};
  CommitPage::Last last = {};
  PhaseResult::About about = {};
  // A worker that is behind has ended its round: others have committed what its host has in memory.
  bool round_ended = false;
  // Of this attempt: whether the phase is committed on another page; what the phase has given, if it is committed.
  bool behind = false;
  std::shared_ptr<PhaseResult> result = nullptr;

  bool asks() const { return run != nullptr && !committed; }
};

namespace {

using Fate = CommitPage::Fate;

Comm survivors_of(World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.survivors()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.comm().split(ranks);
}

// A number of each survivor, by rank. None is negative.
std::vector<std::int64_t> of_all(Comm& survivors, std::int64_t own) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(survivors.size()));
  all[static_cast<std::size_t>(survivors.rank())] = own;
  survivors.all_reduce({all.data(), all.size(), DType::kInt64}, {.op = ReduceOp::kMax}).wait();
  return all;
}

}  // namespace

CommitPage::Last of_source(Comm& survivors, int source, const CommitPage::Last& own, int shards) {
  std::vector<double> numbers = own.losses;
  numbers.resize(static_cast<std::size_t>(shards));
  numbers.push_back(own.total_weight);
  numbers.push_back(own.skipped ? 1 : 0);
  survivors.broadcast({numbers.data(), numbers.size(), DType::kFloat64}, source).wait();
  CommitPage::Last last{{numbers.begin(), numbers.begin() + shards}};
  last.total_weight = numbers[numbers.size() - 2];
  last.skipped = numbers.back() != 0;
  return last;
}

std::shared_ptr<PhaseResult> rescued(PhaseResult::About about, const CommitPage::Last& last) {
  about.total_weight = last.total_weight;
  about.skipped = last.skipped;
  auto result = std::make_shared<PhaseResult>(std::move(about), nullptr);
  result->rescue(last.losses);
  return result;
}

// The first worker of each page looks, and finishes the phase if somebody has begun to write. Collective among the
// survivors.
void JobCore::ask_page(Comm& survivors, Broken& own) {
  const auto pages = of_all(survivors, own.asks() ? own.page : 0);
  const auto commits = of_all(survivors, progress_.commits);
  const auto is_here = [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    return pages[at] == own.page && commits[at] == progress_.commits;
  };
  int first = 0;
  while (own.asks() && !is_here(first)) ++first;
  const bool looks = own.asks() && first == survivors.rank();
  CommitPage* const page = own.asks() ? progress_.loop->commit_page() : nullptr;
  bool committed = false;
  if (looks) {
    const Fate fate = page->fate(own.phase.step, own.phase.number);
    if (fate == Fate::kIntended) own.run->finish();
    committed = fate != Fate::kNothing;
  }
  const auto said = of_all(survivors, committed ? 1 : 0);
  if (!own.asks()) return;
  own.committed = said[static_cast<std::size_t>(first)] > 0;
  if (*own.committed) page->fate(own.phase.step, own.phase.number);  // takes its token
}

// What became of the phase under way, on this worker's page and on the others. Nobody is more than one phase ahead: the
// numbers of a phase come from all workers, and are looked at before the next one is written. Collective among the
// survivors, all of them, wherever they are.
void JobCore::settle_phase(Comm& survivors, Broken& own) {
  Loop& loop = *progress_.loop;
  const bool asked = own.asks();
  ask_page(survivors, own);
  if (asked) *own.committed ? own.run->complete() : loop.restore_buffers();
  if (asked) own.about = own.run->about(own.phase);
  if (loop.commit_page() != nullptr) own.last = loop.commit_page()->last();
  const std::int64_t done = progress_.commits + (own.committed.value_or(false) ? 1 : 0);
  const auto all = of_all(survivors, done);
  const auto furthest = std::max_element(all.begin(), all.end());
  own.behind = done < *furthest;
  own.result = own.committed.value_or(false) ? rescued(own.about, own.last) : nullptr;
  if (std::count(all.begin(), all.end(), *furthest) == survivors.size()) return;
  const auto last =
      of_source(survivors, static_cast<int>(furthest - all.begin()), own.last, generation_.shards);
  if (!own.behind) return;
  LOCKSTEP_CHECK(own.run != nullptr && done + 1 == *furthest, "nobody commits a phase alone");
  own.last = last;
  own.result = rescued(own.about, last);
  if (std::exchange(own.round_ended, true)) return;
  for (const JobModels::Trained& trained : models_.trained)
    if (trained.local && trained.local->has_course()) trained.local->commit(own.phase.steps);
}

// The device of this worker has failed, or there is no memory left. The others go on, and a replacement may find it
// better: so this process ends by a signal, which means that to the launcher. Not in the first phase: a job that has
// never worked ends with the error.
void JobCore::leave_if_broken(const std::exception& error) const {
  if (progress_.commits == 0 || generation_.size() == 1 || !can_recover()) return;
  base::log(base::LogLevel::kError, "this worker leaves the job: {}", error.what());
  ::raise(SIGKILL);
}

// The memory of some worker has changed by itself. Every worker gets here, and nobody knows what else is wrong: all end, as
// by a signal, and the workers that replace them go on from the last checkpoint. One that is still being written counts:
// its copy was checked. They wait for each other first: a worker that had not heard of it would take the others for lost,
// and go on.
void JobCore::go_back_after(const Mismatch& found) {
  if (!can_recover()) return;
  try {
    if (checkpoints_ && checkpoints_->is_under_way()) checkpoints_->finish();
  } catch (const Error& error) {
    base::log(base::LogLevel::kError, "the last checkpoint is not whole: {}", error.what());
  }
  if (const control::Estate* const estate = control::estate_of(generation_.world)) estate->drop();
  if (generation_.rank() == 0) {
    const std::int64_t on_disk = checkpoints_ ? checkpoints_->on_disk() : -1;
    base::log(base::LogLevel::kError, "{}. The job goes back to {}", found.what(),
              on_disk < 0 ? "its beginning" : fmt::format("the checkpoint of step {}", on_disk));
  }
  try {
    generation_.control.barrier().wait();
  } catch (const Error&) {
    // The others have heard of it, too.
  }
  ::raise(SIGKILL);
}

void JobCore::tell_result(std::shared_ptr<PhaseResult> result) {
  if (!hooks_.on_result) return;
  hooks_.on_result(*result, false);
  numbers_.told =
      generation_.world.elastic() && generation_.rank() != 0 ? std::move(result) : nullptr;
}

// The numbers of the phase before, which was committed: they may have been lost on their way.
void JobCore::rescue_numbers() {
  if (!numbers_.pending) return;
  try {
    numbers_.pending->wait();
  } catch (const Error&) {
    numbers_.pending->rescue(progress_.loop->commit_page()->last().losses);
    numbers_.checks.clear();
  }
}

void JobCore::regroup(bool in_batch, std::int64_t step, Broken& own) {
  World world = control::handle_on(generation_.world);
  auto inventory = generation_.inventory;
  Loop& loop = *progress_.loop;
  own.page = loop.commit_page()->id();
  rescue_numbers();
  progress_.regroups = true;
  while (true) {
    control::Faults::here().strike("regroup", step);
    world.regroup(in_batch);
    try {
      Comm survivors = survivors_of(world);
      settle_phase(survivors, own);
      loop.close();
      const auto before =
          std::exchange(inventory, world.inventory());  // it has all of them, also if this fails
      before->move_to(world);
      if (!inventory->nobody_is_new()) prepare(data_.dataset, data_.options, data_.more);
      const bool has_result = own.committed.value_or(false);
      if (catch_up(progress_.commits + (has_result ? 1 : 0))) own.committed = true;
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
  // The leader before may have died before its hook was called. Nobody gets further than one phase before it is.
  if (generation_.rank() != 0) return;
  if (const auto told = std::exchange(numbers_.told, nullptr)) hooks_.on_result(*told, true);
}

// Null: the phase is to be repeated. Newcomers have to wait for the next batch: this one may have phases behind it.
std::shared_ptr<PhaseResult> JobCore::recover(const StepCore& step, const Phase& phase) {
  Broken own{.phase = phase, .run = &progress_.loop->run_of(step)};
  regroup(true, phase.step, own);
  if (own.result) collect();  // the numbers of the phase before
  const std::string round =
      phase.steps > 1 ? fmt::format(", with a round of {} steps", phase.steps) : "";
  std::string fate = own.behind ? "was committed elsewhere" : own.result ? "was finished" : "";
  for (const JobModels::Trained& trained : models_.trained) {
    if (!fate.empty() || !trained.local || !trained.local->round_goes_on()) continue;
    fate = fmt::format("goes on after {} updates", trained.local->course().updates());
  }
  base::log(base::LogLevel::kInfo, "{} workers go on at step {}{}, which {}", generation_.size(),
            phase.step, round, fate.empty() ? "was begun again" : fate);
  return own.result;
}

// Between two phases. Others may be in the next one already.
void JobCore::recover_at_rest() {
  // If the batch is done, the reader has ended it already.
  regroup_at_rest(true, std::max(progress_.loop->current().step(), progress_.next));
}

void JobCore::join_newcomers() {
  settle();
  progress_.asked.newcomers = false;
  regroup_at_rest(false, progress_.next);
}

void JobCore::regroup_at_rest(bool in_batch, std::int64_t step) {
  Broken own{.phase = {}};
  regroup(in_batch, step, own);
}

}  // namespace lockstep::steps

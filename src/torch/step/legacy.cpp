// If all workers of a job die at once. The keeper holds their memory (control/rendezvous/estate.h), and the workers that
// are started then go on after the last phase that was committed:
//
//   leave    each worker gives the keeper what it shares: weights, state, gradients, the commit page
//   seal     after the first phase that is committed there, the leader says that this memory counts
//   find     the new leader looks how far the dead had come, and whether their job was this one. The loop begins with the
//            batch of that phase
//   take     where the program runs the phase, the leader does not compute it. It makes its models and optimizers once
//            more, in the place of the dead leader (control/legacy.h), finishes the phase as a survivor does, and goes back
//            to the new workers. These take its state
//
// So what the program does around the phase, it does again: set a learning rate, for example.
//
// If it fails, all workers end, and begin again: from the memory, or, if that is to blame, from the checkpoint.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <lockstep/arena.h>
#include <lockstep/errors.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "control/doing.h"
#include "control/faults.h"
#include "control/legacy.h"
#include "torch/step/job_core.h"
#include "torch/step/rescue.h"

namespace lockstep::steps {
namespace {

// A record beside the memory says whose it is.
constexpr std::uint32_t kLegacyRecord = ~0U;

bool is_record(const control::HeldItem& held) {
  return held.item.number == kLegacyRecord;
}

std::string text_of(const control::HeldItem& record) {
  const Arena memory = Arena::attach(record.memory.get(), record.item.bytes);
  const char* const text = reinterpret_cast<const char*>(memory.data());
  return {text, ::strnlen(text, memory.size())};
}

std::optional<CommitPage::Left> page_among(const std::vector<control::HeldItem>& items) {
  for (const auto& [item, memory] : items) {
    if (item.rank != 0 || item.number == kLegacyRecord) continue;
    const Arena arena = Arena::attach(memory.get(), item.bytes);
    const auto left = CommitPage::left_in({arena.data(), arena.size()});
    if (left && left->id == item.set) return left;
  }
  return std::nullopt;
}

}  // namespace

struct JobCore::Legacy {
  std::vector<control::HeldItem> items;  // on the leader
  std::int64_t step = 0;                 // of its last phase
  int workers = 0;                       // that have left it
};

// Only what can be finished from memory alone: nothing else may change in a step.
bool JobCore::can_leave_memory(Loop& loop) const {
  const CommitPage& page = *loop.commit_page();
  if (control::estate_of(generation_.world) == nullptr || !page.has_all_of(generation_.size()) ||
      loop.own_weights() != Loop::OwnWeights::kNone)
    return false;
  if (setup_.only_reads || data_.streams || !models_.kept.empty()) return false;
  if (setup_.options.local_steps.enabled()) return false;
  if (steps_.size() != 1 || steps_.front()->noise) return false;
  for (const JobModels::Trained& trained : models_.trained) {
    ModelStep& step = loop.trained(loop.number_of(*trained.optimizer)).step;
    if (step.trained().model->parts().may_be_absent() || step.gradients().meets()) return false;
  }
  return true;
}

// What must be the same for this job to go on from the memory.
std::string JobCore::legacy_record(int workers) const {
  base::Sha256 all;
  for (const auto& [name, value] : hashed_properties())
    all.update(fmt::format("{}={}\n", name, value));
  return fmt::format("{} workers, {} threads, job {} and loop {} of its program, {}", workers,
                     at::get_num_threads(), setup_.number, control::loops_in(generation_.world),
                     base::to_hex(all.finish()));
}

// What a worker cannot give lacks later: then nobody goes on from this memory.
void JobCore::leave_memory(Loop& loop) {
  if (!can_leave_memory(loop)) return;
  const auto set = static_cast<std::uint64_t>(loop.commit_page()->id());
  bool given = control::give_memory(generation_.world, set);
  if (generation_.rank() == 0) {
    const std::string text = legacy_record(generation_.size());
    const Arena record = Arena::create(text.size() + 1);
    std::memcpy(record.data(), text.data(), text.size());
    given = given && control::estate_of(generation_.world)
                         ->give({set, 0, 0, kLegacyRecord, record.size()}, record.fd());
  }
  loop.commit_page()->set_left(given);
}

void JobCore::seal_memory() {
  CommitPage* const page = progress_.loop->commit_page();
  if (generation_.rank() != 0 || page == nullptr || !page->is_left() || !page->has_commit()) return;
  page->set_left(false);
  control::estate_of(generation_.world)->seal(static_cast<std::uint64_t>(page->id()));
}

// After the checkpoint was read. A batch that is in the checkpoint is done, with all that the program did after it.
// Several phases of a batch are not known: each but the last has lost its numbers. A loop takes over its own batches only:
// the record has its number.
void JobCore::find_memory() {
  const control::Estate* const estate = control::estate_of(generation_.world);
  auto legacy = std::make_shared<Legacy>();
  std::int64_t found[] = {-1, 0};  // the step, the workers
  if (generation_.rank() == 0 && estate != nullptr) {
    try {
      legacy->items = estate->fetch();
      const auto record = std::find_if(legacy->items.begin(), legacy->items.end(), is_record);
      const auto left = page_among(legacy->items);
      int workers = 0;
      for (const auto& [item, memory] : legacy->items)
        workers = std::max(workers, static_cast<int>(item.rank) + 1);
      if (left && left->phase == 0 && left->step >= progress_.next &&
          record != legacy->items.end() && text_of(*record) == legacy_record(workers)) {
        found[0] = left->step;
        found[1] = workers;
      }
      std::erase_if(legacy->items, is_record);
    } catch (const Error& error) {
      base::log(base::LogLevel::kWarn, "the memory that was left cannot be read: {}", error.what());
    }
  }
  generation_.control.broadcast({found, std::size(found), DType::kInt64}, 0).wait();
  if (found[0] < 0) {
    if (generation_.rank() == 0) {
      base::log(base::LogLevel::kWarn, "{}",
                progress_.next > 0
                    ? fmt::format("goes on from the checkpoint of step {}", progress_.next)
                    : "begins with step 0: there is no checkpoint to go on from");
    }
    return;
  }
  legacy->step = found[0];
  legacy->workers = static_cast<int>(found[1]);
  progress_.legacy = std::move(legacy);
  progress_.next = found[0];
  if (generation_.rank() == 0) {
    base::log(base::LogLevel::kWarn,
              "goes on after step {}, from the memory of the workers that have died", found[0]);
  }
}

// On the leader: its models and optimizers have what the dead have left.
CommitPage::Last JobCore::take_memory(const StepCore& step, const Phase& phase, World& world) {
  const auto legacy = progress_.legacy;
  Loop& loop = *progress_.loop;
  World late = control::late_world(world, legacy->workers);
  world.inventory()->move_to(late);
  loop.open();
  control::show_memory(late, legacy->items);
  if (!loop.commit_page()->has_its_shape())
    throw Mismatch("the commit page that was left is that of other models");
  loop.run_of(step).take_over(phase);
  const CommitPage::Last last = loop.commit_page()->last();
  loop.close();
  late.inventory()->move_to(world);
  return last;
}

std::shared_ptr<PhaseResult> JobCore::take_over(const StepCore& step, const Phase& phase) {
  World world = control::handle_on(generation_.world);
  Loop& loop = *progress_.loop;
  CommitPage::Last last;
  try {
    if (phase.step != progress_.legacy->step)
      throw Mismatch("the program has left out the step that it had run");
    progress_.regroups = true;
    loop.close();
    if (generation_.rank() == 0) {
      last = take_memory(step, phase, world);
    } else {
      world.inventory()->move_to(world);
    }
    control::Faults::here().strike("join", 0);
    take_state_of(0, generation_.rank() != 0);
    last = of_source(generation_.control, 0, last, generation_.shards);
    loop.reopen(phase.step);
    progress_.regroups = false;
    progress_.legacy.reset();
  } catch (const std::exception& error) {
    const bool lost = dynamic_cast<const PeerLost*>(&error) != nullptr ||
                      dynamic_cast<const Timeout*>(&error) != nullptr;
    base::log(base::LogLevel::kError, "cannot go on after step {}: {}", phase.step, error.what());
    if (!lost) control::estate_of(world)->drop();
    ::raise(SIGKILL);
  }
  PhaseResult::About about = loop.run_of(step).about(phase);
  about.again = true;
  return rescued(std::move(about), last);
}

}  // namespace lockstep::steps

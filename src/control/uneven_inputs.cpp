#include <lockstep/errors.h>
#include <lockstep/uneven_inputs.h>

#include "control/announcements.h"
#include "control/turns.h"

namespace lockstep {

UnevenLoop::UnevenLoop(World& world, const UnevenOptions& options)
    : announcements_(world.announcements()), options_(options) {
  if (announcements_->turns().under_way())
    throw BadInput("a loop of UnevenInputs inside of another: end the first one");
}

UnevenLoop::~UnevenLoop() {
  announcements_->turns().leave(*announcements_);
}

bool UnevenLoop::next(bool has_batch, bool can_repeat) {
  using control::Turns;
  const Turns::Batch without = can_repeat ? Turns::Batch::kRepeats : Turns::Batch::kNone;
  return announcements_->turns().begin(
      *announcements_, has_batch ? Turns::Batch::kOwn : without,
      {.divides_by_present = options_.divide_by == UnevenOptions::DivideBy::kPresent,
       .throws_if_one_ends = options_.throw_on_early_termination});
}

}  // namespace lockstep

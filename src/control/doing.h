// A worker says what it does, on the news page (rendezvous/news.h). The launcher looks at it once a second, and so finds
// a worker that others wait for and that makes no progress.
#pragma once

#include <lockstep/world.h>

#include "control/rendezvous/news.h"

namespace lockstep::control {

// Costs a store. Nothing happens in a world whose workers may not leave.
void say(const World& world, Doing doing);

// A loop over batches begins in this program. From the second one on nobody can join the world: a newcomer would begin
// with the first, and between two of them there may be anything.
void begin_loop(const World& world);
int loops_in(const World& world);  // that have begun; 0 in a world whose workers may not leave

// From here to the end of its life: a phase of a step. The worker computes until it waits for the others.
class [[nodiscard]] SayingPhase {
 public:
  explicit SayingPhase(const World& world) : world_(world) { say(world_, Doing::kComputes); }
  ~SayingPhase() { say(world_, Doing::kElse); }
  SayingPhase(const SayingPhase&) = delete;
  SayingPhase& operator=(const SayingPhase&) = delete;

  void meets() const { say(world_, Doing::kWaits); }

 private:
  const World& world_;
};

}  // namespace lockstep::control

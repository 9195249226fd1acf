// One membership of a job: who is here, which shards each worker hosts, and how their gradients are added. Everything
// that depends on the workers is in it. So a job goes to other workers by taking another Generation.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/job.h>
#include <lockstep/world.h>

#include "control/inventory.h"
#include "plan/accumulation.h"
#include "plan/tree.h"

namespace lockstep::steps {

// What a program or a Trainer asks of a job.
struct JobSetup {
  JobOptions options;
  int asked_shards = 0;     // what the program asked for; options.shards is what was chosen
  int accumulate = 0;       // shards per worker at the start, if the number of shards is open
  bool only_reads = false;  // no checkpoint is written
  int number = 0;           // of the job among those of this process
};

// The job owns it. A change of membership replaces it as a whole.
struct Generation {
  World world;                                    // a handle
  std::shared_ptr<control::Inventory> inventory;  // of the world
  Comm control;  // for weights of shards, buffers, agreements and checkpoints
  int shards = 0;
  plan::ShardRange hosted;
  plan::ShardedReduction reduction;

  int rank() const { return control.rank(); }
  int size() const { return control.size(); }
  const plan::Accumulation& mine() const {
    return reduction.workers[static_cast<std::size_t>(rank())];
  }
};

// The workers of the world as they are now. If the options leave the number of shards open, chooses it and writes it
// there. BadInput for options that these workers cannot follow; Mismatch if workers would treat checkpoints differently.
// Collective.
Generation make_generation(World& world, JobSetup& setup);

// Whether the job would go on from a checkpoint.
bool resumes(const JobOptions& options);

}  // namespace lockstep::steps

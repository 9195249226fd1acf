// One membership of a job: who is here, which shards each worker hosts, and how their gradients are added up. All that
// depends on the workers is in it, so that a job goes to other workers by taking another one.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/job.h>

#include "control/inventory.h"
#include "plan/accumulation.h"
#include "plan/tree.h"

namespace lockstep::steps {

// What a job is asked for, by a program or by a Trainer.
struct JobSetup {
  JobOptions options;
  int asked_shards = 0;     // by the program; the options have what became of it
  int accumulate = 0;       // shards for each worker at the start, if nobody says how many shards
  bool only_reads = false;  // no checkpoint is written
};

struct Generation {
  std::shared_ptr<control::Inventory> inventory;  // of the world
  Comm control;  // weights of shards, buffers, agreements, checkpoints: in one order on all workers
  int shards = 0;
  plan::ShardRange hosted;
  plan::ShardedReduction reduction;

  int rank() const { return control.rank(); }
  int size() const { return control.size(); }
  const plan::Accumulation& mine() const {
    return reduction.workers[static_cast<std::size_t>(rank())];
  }
};

// The workers of the world as they are now. Chooses the shards if the options leave that open, and writes them there.
// BadInput for options that these workers cannot follow, Mismatch when they would not do the same about checkpoints.
// Collective.
Generation make_generation(World& world, JobSetup& setup);

// Whether the job goes on from a checkpoint, if there is one.
bool resumes(const JobOptions& options);

}  // namespace lockstep::steps

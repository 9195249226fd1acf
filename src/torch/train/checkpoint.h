// The state of a training run in one file: weights, optimizer, position and job.
//
//   tensors    the model's parameters and buffers by name; the optimizer's as "optimizer/…"
//   metadata   lockstep.format, lockstep.step (steps done), lockstep.optimizer_steps, and the job's
//              properties as lockstep.job.NAME
//
// Random numbers need no state: those of a shard are seeded anew from (job, step, shard).
#pragma once

#include <lockstep/comm.h>
#include <lockstep/data_parallel.h>
#include <lockstep/optim.h>

#include <cstdint>
#include <map>
#include <string>

namespace lockstep::train {

using Job = std::map<std::string, std::string>;

std::string checkpoint_path(const std::string& directory);

// Each of these works on rank 0 alone, and fails on every worker alike. Collective.

// Makes the directory, and finds out whether a file can be written there before time is spent on
// training.
void prepare_directory(Comm& comm, const std::string& directory);

// BadInput, and the earlier file stays, when a parameter is not finite: nobody could go on from it.
void write_checkpoint(Comm& comm, const std::string& directory, const Replica& model,
                      const optim::Optimizer& optimizer, std::int64_t step, const Job& job);

// Gives what it read to all. Returns the steps done; −1 when there is no checkpoint. BadInput when it is
// damaged, Mismatch when it is of another model or job, naming the property.
std::int64_t read_checkpoint(Comm& comm, const std::string& directory, Replica& model,
                             optim::Optimizer& optimizer, const Job& job);

// A property of the job of the checkpoint in a directory; empty if there is none.
std::string checkpoint_property(Comm& comm, const std::string& directory, const std::string& name);

}  // namespace lockstep::train

// Lockstep: data-parallel training for C++. In reading order:
#pragma once

#include <lockstep/arena.h>      // memory that a host's workers share
#include <lockstep/bootstrap.h>  // how workers find each other
#include <lockstep/buffer.h>     // elements in memory
#include <lockstep/comm.h>       // messages and collectives
#include <lockstep/deadline.h>   // the time by which a call must have ended
#include <lockstep/errors.h>     // the five ways a call can fail
#include <lockstep/work.h>       // an operation under way
#include <lockstep/world.h>      // join(): the workers training together

// For LibTorch, where the library was built with it:
#if defined(LOCKSTEP_WITH_TORCH)
#include <lockstep/autocast.h>       // half types in forward; weights in float32, or held so, too
#include <lockstep/checkpoint.h>     // save() and load(): models in safetensors files
#include <lockstep/data.h>           // the loader, the sampler
#include <lockstep/data_parallel.h>  // data_parallel(): a model on every worker
#include <lockstep/dataset.h>        // sets of samples
#include <lockstep/job.h>            // Job: data, position and checkpoints of a loop of your own
#include <lockstep/optim.h>          // SGD, Adam and AdamW on the flat layout
#include <lockstep/step.h>           // Step: the same bits on any number of workers
#include <lockstep/tensors.h>        // collectives on tensors
#include <lockstep/trainer.h>        // the loop owner
#endif

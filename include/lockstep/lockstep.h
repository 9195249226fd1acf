// Lockstep: data-parallel training for C++.
//
// The headers are in reading order: first what a training loop needs, then what is below it.
#pragma once

// clang-format off
#include <lockstep/world.h>          // join(): the workers that train together

// For LibTorch, where the library was built with it:
#if defined(LOCKSTEP_WITH_TORCH)
#include <lockstep/job.h>            // Job: data, position and checkpoints of your own loop
#include <lockstep/step.h>           // Step: the same bits on any number of workers
#include <lockstep/data_parallel.h>  // data_parallel(): a model on every worker
#include <lockstep/codec.h>          // gradients in fewer bytes
#include <lockstep/sync_batchnorm.h> // statistics over the samples of all workers
#include <lockstep/optim.h>          // SGD, Adam, AdamW, RMSprop, Adagrad, LARS, LAMB, and your own
#include <lockstep/schedule.h>       // learning rates, warm-up, larger batches
#include <lockstep/noise_scale.h>    // NoiseScale: how large a batch still pays
#include <lockstep/dataset.h>        // Dataset: samples by number
#include <lockstep/stream.h>         // Stream: samples that can only be read forward
#include <lockstep/data.h>           // loader(), and the sampler behind it
#include <lockstep/uneven_inputs.h>  // workers that run out of batches at different times
#include <lockstep/autocast.h>       // half types in the forward pass
#include <lockstep/grad_scaler.h>    // GradScaler: float16 without lost gradients
#include <lockstep/activation_checkpoint.h>  // checkpoint(): less memory, more time
#include <lockstep/checkpoint.h>     // save() and load(): models in safetensors files
#include <lockstep/metrics.h>        // Metrics: averages over all workers
#include <lockstep/trainer.h>        // Trainer: the whole loop
#include <lockstep/tensors.h>        // collectives on tensors
#endif

// Below the training loop:
#include <lockstep/errors.h>         // the five ways in which a call can fail
#include <lockstep/deadline.h>       // the time by which a call must have ended
#include <lockstep/buffer.h>         // elements in memory
#include <lockstep/comm.h>           // Comm: collectives and messages
#include <lockstep/work.h>           // Work: an operation under way
#include <lockstep/arena.h>          // memory that the workers of a host share
#include <lockstep/bootstrap.h>      // how workers find each other
#include <lockstep/faults.h>         // faults on purpose, for tests
// clang-format on

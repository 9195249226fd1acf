// The order of asynchronous rounds (lockstep/local_steps.h): with the job, it decides every bit of their result.
//
//   task     the gradient of one shard in one step
//   update   a task whose gradient was applied. The updates of a round have numbers, from 0 on, in the order in which they
//            were applied
//   seen     how many updates of the round were in the weights that a task began with
//
// As a file:
//
//   lockstep order 1
//   job 0f1e2d3c4b5a6978  a digest of what decides the job's bits besides
//   shards 4
//   round 0 50 200        its first step, its steps, its updates
//   0 1 0                 step, shard and seen of an update; one line for each
//   …
//
// A round that begins no later than one before it replaces that one, and all behind it: the job has gone back. What a killed
// writer has left of a last round does not count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plan/rounds.h"

namespace lockstep::plan {

struct OrderedUpdate {
  std::int64_t step = 0;
  int shard = 0;
  std::int64_t seen = 0;
  bool operator==(const OrderedUpdate&) const = default;
};

// One round. pulls(): the updates in the order in which their tasks took weights; by number if they saw the same weights.
struct RoundOrder {
  StepRange steps;
  std::vector<OrderedUpdate> updates;

  std::vector<std::size_t> pulls() const;
  // How many tasks have taken weights before the update with this number may change them.
  std::vector<std::size_t> pulls_before() const;
  bool operator==(const RoundOrder&) const = default;
};

struct Order {
  std::string job;
  int shards = 0;
  std::vector<RoundOrder> rounds;  // by their steps
  bool is_cut = false;             // another round was begun and not ended

  const RoundOrder* find(
      std::int64_t first) const;  // the round that begins there; null: there is none
};

// BadInput with the file and the line.
Order parse_order(std::string_view text, const std::string& file);

std::string order_head(const std::string& job, int shards);
std::string order_text(const RoundOrder& round);

// How much of its learning rate an update keeps that has missed so many others: with S shards as many as S − 1 are missed where
// all workers are equally fast. Beyond that, the rate falls as 1 / (missed + 1).
double rate_if_stale(std::int64_t missed, int shards);

}  // namespace lockstep::plan

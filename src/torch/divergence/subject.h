// What the divergence check looks at: a model that is trained, and the update that trains it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "flat/parity.h"

namespace lockstep::divergence {

// Threads:   one caller at a time.
// Blocking:  seen() and check_at_rest(), on a GPU until what they look at is done.
// Failure:   none: a difference is a fault.
class Subject {
 public:
  virtual ~Subject() = default;

  // After an update. By place: the gradients that were applied to each piece, then its parameters with state.
  virtual std::vector<flat::Parity> seen() = 0;
  // What workers do differently there: "have applied different gradients to fc1.weight (elements 0 to 8191)".
  virtual std::string place_name(std::size_t place) const = 0;

  // Whether every worker updates a copy of its own.
  virtual bool has_copies() const = 0;

  // Compares what there is with what the last update has left.
  virtual void check_at_rest() = 0;

  // The first one of this worker.
  struct Found {
    int worker = 0;
    std::string text;
    std::string remedy;
  };
  virtual std::optional<Found> fault() const = 0;
};

}  // namespace lockstep::divergence

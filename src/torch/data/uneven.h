// The public words for uneven data as the plan's.
#pragma once

#include <lockstep/data.h>

#include "plan/sampler.h"

namespace lockstep::data {

inline plan::Remainder remainder_of(Uneven uneven) {
  switch (uneven) {
    case Uneven::kDrop:
      return plan::Remainder::kDrop;
    case Uneven::kKeep:
      return plan::Remainder::kKeep;
    case Uneven::kPad:
      break;
  }
  return plan::Remainder::kPad;
}

}  // namespace lockstep::data

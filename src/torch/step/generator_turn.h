// Who may use LibTorch's default generator.
#pragma once

#include <mutex>

namespace lockstep::steps {

// It belongs to the process, and workers may be threads of one: they take turns to seed it and to draw from it.
inline std::mutex& generator_turn() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace lockstep::steps

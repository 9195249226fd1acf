#include "tests/torch/gpu/gpu_local.h"

#include <map>

#include "tests/torch/asynchronous_jobs.h"
#include "tests/torch/local_jobs.h"

namespace lockstep::testing {
namespace {

using loops::LocalHow;

LocalSteps with_state(LocalSteps local, LocalState state) {
  local.state = state;
  return local;
}

// In each of them a round ends with step 6, which is not the last.
std::map<std::string, LocalHow> kinds() {
  constexpr std::int64_t kLong = 13;  // more rounds than there are fragments
  return {
      {"local-sgd", {}},
      {"post-local", {.local = LocalSteps::post_local_sgd(2, 4), .optimizer = "sgd"}},
      {"diloco", {.local = LocalSteps::diloco(2), .model = "gpt"}},
      {"averaged", {.local = with_state(LocalSteps::diloco(2), LocalState::kAveraged)}},
      {"reset",
       {.local = with_state(LocalSteps::sgd(2), LocalState::kReset), .optimizer = "adagrad"}},
      {"clipped", {.optimizer = "clipped"}},
      {"batch-norm", {.model = "cnn"}},
      {"streaming", {.local = LocalSteps::streaming_diloco(4, 2), .steps = kLong}},
      {"streaming-batch-norm",
       {.local = LocalSteps::streaming_diloco(6, 3), .model = "cnn", .steps = kLong}},
  };
}

// All of these can also run where workers share no memory.
std::map<std::string, LocalHow> asynchronous_kinds() {
  const LocalSteps free = LocalSteps::stale(Asynchronous::kUnbounded, 3);
  return {
      {"free", {.local = free}},
      {"bounded", {.local = LocalSteps::stale(1, 5), .optimizer = "sgd"}},
      {"compensated", {.local = loops::asynchronous::with(free, true, 0.5)}},
      {"clipped", {.local = free, .optimizer = "clipped"}},
      {"batch-norm", {.local = free, .model = "cnn"}},
      {"backup", {.local = LocalSteps::with_backups(1, 3), .model = "cnn"}},
      {"gpt", {.local = free, .model = "gpt"}},
  };
}

}  // namespace

std::string local_hashes(World& world, const std::string& folder, std::int64_t stop) {
  std::string lines;
  for (auto [name, how] : kinds()) {
    if (!folder.empty()) how.checkpoint = folder + "/" + name;
    const std::string hash = loops::trained_until(world, how, stop > 0 ? stop : how.steps);
    lines += name + " " + hash + "\n";
  }
  return lines;
}

std::string asynchronous_hashes(World& world, const std::string& folder, Orders orders) {
  std::string lines;
  for (const auto& [name, kind] : asynchronous_kinds()) {
    const std::string order = folder + "/" + name;
    const LocalHow how = orders == Orders::kRecorded ? loops::asynchronous::recording(kind, order)
                                                     : loops::asynchronous::replaying(kind, order);
    lines += name + " " + loops::trained_until(world, how, how.steps) + "\n";
  }
  return lines;
}

}  // namespace lockstep::testing

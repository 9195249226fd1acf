// Replaces the benchmarks in builds with a sanitizer, where they would measure the sanitizer.
#include <lockstep/errors.h>

#include "bench/allreduce/worker.h"
#include "bench/command.h"
#include "bench/hosts_bench.h"

namespace lockstep::bench {

int bench(const std::vector<std::string>&) {
  throw Unavailable("this build has a sanitizer in it, which `bench` would measure: use another");
}

int enter_host(const std::vector<std::string>& words) {
  return bench(words);
}

int allreduce_worker(const std::vector<std::string>& words) {
  return bench(words);
}

}  // namespace lockstep::bench

// Is `direct` over Gloo as fast as Gloo's own all-reduce? Both in one run, interleaved, on the same
// processes.
//
//   gloo_allreduce_bench [workers ...]      default: 2 4
//
// Prints the median and the quartiles of the slowest worker's time per repetition, and the ratio of
// medians.
#include <fmt/format.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>

#include "tests/support/elements.h"
#include "tests/support/workers.h"

namespace lockstep::testing {
namespace {

using Clock = std::chrono::steady_clock;

std::shared_ptr<gloo::Context> plain_gloo(const std::string& folder, int rank, int size) {
  auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
  gloo::rendezvous::FileStore store(folder);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  context->connectFullMesh(store, device);
  return context;
}

void gloo_all_reduce(const std::shared_ptr<gloo::Context>& context, std::vector<float>& data) {
  gloo::AllreduceOptions options(context);
  options.setOutput(data.data(), data.size());
  options.setReduceFunction(
      static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
  gloo::allreduce(options);
}

struct Series {
  std::vector<double> times;

  double quantile(double fraction) {
    std::sort(times.begin(), times.end());
    return times[static_cast<std::size_t>(fraction * static_cast<double>(times.size() - 1))];
  }
};

// The slowest worker's time of one run, known to all.
double slowest_ms(Comm& comm, const std::function<void()>& body) {
  comm.barrier().wait();
  const auto begun = Clock::now();
  body();
  std::vector<double> took{std::chrono::duration<double, std::milli>(Clock::now() - begun).count()};
  comm.all_reduce(buffer_of(took), {ReduceOp::kMax}).wait();
  return took[0];
}

void measure(Comm& comm, const std::string& folder) {
  const auto context = plain_gloo(folder, comm.rank(), comm.size());
  for (const std::size_t bytes : {std::size_t{1} << 20, std::size_t{64} << 20}) {
    std::vector<float> ours(bytes / 4, 1.0F);
    std::vector<float> theirs(bytes / 4, 1.0F);
    Series direct;
    Series native;
    const int repetitions = bytes > (std::size_t{8} << 20) ? 25 : 150;
    for (int i = 0; i < repetitions + 5; ++i) {
      const double a = slowest_ms(comm, [&] { comm.all_reduce(buffer_of(ours)).wait(); });
      const double b = slowest_ms(comm, [&] { gloo_all_reduce(context, theirs); });
      if (i < 5) continue;  // warm-up
      direct.times.push_back(a);
      native.times.push_back(b);
    }
    if (comm.rank() != 0) continue;
    fmt::print(
        "{:>7} {:>7} MiB  {:>8.2f} ({:.2f} to {:.2f})  {:>8.2f} ({:.2f} to {:.2f})  {:>6.2f}\n",
        comm.size(), bytes >> 20, direct.quantile(0.5), direct.quantile(0.25),
        direct.quantile(0.75), native.quantile(0.5), native.quantile(0.25), native.quantile(0.75),
        native.quantile(0.5) / direct.quantile(0.5));
    std::fflush(stdout);
  }
}

void bench(int workers) {
  char folder[] = "/tmp/lockstep-bench-XXXXXX";
  const std::string store = ::mkdtemp(folder);
  {
    ProcessWorld world({"gloo", workers, std::chrono::minutes(2)},
                       [&](Comm& comm) { measure(comm, store); });
    for (int rank = 0; rank < workers; ++rank) {
      const auto outcome = world.wait(rank, Deadline::after(std::chrono::minutes(5)));
      if (!outcome || !outcome->text.empty()) {
        fmt::print(stderr, "worker {} failed: {}\n", rank,
                   outcome ? outcome->text : "still running");
        std::exit(1);
      }
    }
  }
  std::filesystem::remove_all(store);
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  fmt::print(
      "workers        size  direct ms (quartiles)       Gloo's own ms (quartiles)   Gloo/direct\n");
  std::fflush(stdout);
  std::vector<int> workers{2, 4};
  if (argc > 1) workers.clear();
  for (int i = 1; i < argc; ++i) workers.push_back(std::atoi(argv[i]));
  for (const int count : workers) lockstep::testing::bench(count);
  return 0;
}

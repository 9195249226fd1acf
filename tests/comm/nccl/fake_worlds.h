// Workers as threads that share one fake device.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/channel.h"
#include "comm/engines.h"
#include "comm/nccl/nccl_link.h"
#include "tests/comm/nccl/device_cases.h"
#include "tests/comm/nccl/fake_device.h"
#include "tests/support/workers.h"

namespace lockstep::testing {

// `spec.engine` is the link between the workers beside the device.
inline std::vector<Outcome> run_on(const std::shared_ptr<FakeDevice>& device, const WorldSpec& spec,
                                   const std::function<void(Comm&)>& body) {
  static std::atomic<int> worlds{0};
  const std::string name = fmt::format("fake world {}", worlds++);
  auto store = std::make_shared<LocalStore>();
  std::vector<Outcome> outcomes(static_cast<std::size_t>(spec.size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < spec.size; ++rank) {
    threads.emplace_back([&, rank] {
      Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
      const auto begun = Deadline::Clock::now();
      try {
        LocalBootstrap bootstrap(store, name, rank, spec.size);
        CommOptions options;
        options.timeout = spec.timeout;
        auto host = comm::connect_link(spec.engine, bootstrap, options);
        Comm comm(comm::Channel::of_world(comm::make_nccl_link(std::move(host), device), options));
        body(comm);
      } catch (const Error& error) {
        outcome.kind = error.kind();
        outcome.ranks = error.ranks();
        outcome.text = error.what();
      }
      outcome.took =
          std::chrono::duration_cast<std::chrono::milliseconds>(Deadline::Clock::now() - begun);
    });
  }
  for (auto& thread : threads) thread.join();
  return outcomes;
}

}  // namespace lockstep::testing

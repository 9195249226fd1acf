// Workers that have a fake device.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/channel.h"
#include "comm/engines.h"
#include "comm/nccl/nccl_engine.h"
#include "tests/comm/nccl/device_cases.h"
#include "tests/comm/nccl/fake_device.h"
#include "tests/support/workers.h"

namespace lockstep::testing {

// A worker with a device; `engine` is the link between the workers beside it.
inline Comm connect_beside(const std::string& engine, const std::shared_ptr<FakeDevice>& device,
                           Bootstrap& bootstrap, std::chrono::milliseconds timeout) {
  CommOptions options;
  options.timeout = timeout;
  auto host = comm::connect_link(engine, bootstrap, options);
  return Comm(comm::Channel::of_world(comm::make_nccl_link(std::move(host), device), options));
}

// All of a world, as threads that share the device.
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
        Comm comm = connect_beside(spec.engine, device, bootstrap, spec.timeout);
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

// That plan/traffic.h counts what `direct` sends: every message of a reduction is counted on its way into the engine.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "comm/channel.h"
#include "comm/core/header.h"
#include "comm/thread/thread_engine.h"
#include "plan/traffic.h"
#include "tests/support/slow_build.h"

namespace lockstep::testing {
namespace {

// A link that counts the bytes which this worker sends and expects.
class CountingLink : public comm::Link {
 public:
  explicit CountingLink(std::shared_ptr<comm::Link> link) : link_(std::move(link)) {}

  // Of all messages but the greetings, which are one header for each peer.
  plan::Traffic payload() const {
    const std::size_t headers = static_cast<std::size_t>(size() - 1) * comm::kHeaderBytes;
    return {sent_ - headers, received_ - headers};
  }

  int rank() const override { return link_->rank(); }
  int size() const override { return link_->size(); }
  std::string engine() const override { return link_->engine(); }
  std::unique_ptr<comm::Transfer> send(int peer, comm::Slot slot, const void* data,
                                       std::size_t bytes) override {
    sent_ += bytes;
    return link_->send(peer, slot, data, bytes);
  }
  std::unique_ptr<comm::Transfer> recv(int peer, comm::Slot slot, void* data,
                                       std::size_t bytes) override {
    received_ += bytes;
    return link_->recv(peer, slot, data, bytes);
  }
  void fail(const comm::Failure& failure) noexcept override { link_->fail(failure); }
  std::optional<comm::Failure> failure() const override { return link_->failure(); }
  void tell(const comm::Failure& failure) noexcept override { link_->tell(failure); }
  std::optional<comm::Failure> heard_from(int peer, Deadline deadline) noexcept override {
    return link_->heard_from(peer, deadline);
  }

 private:
  std::shared_ptr<comm::Link> link_;
  std::atomic<std::size_t> sent_{0};
  std::atomic<std::size_t> received_{0};
};

plan::Traffic reduce_and_count(const std::shared_ptr<comm::Link>& link, int shards,
                               std::size_t count) {
  const auto counting = std::make_shared<CountingLink>(link);
  Comm comm(comm::Channel::of_world(counting, {.timeout = std::chrono::seconds(20)}));
  const int rank = comm.rank();
  const auto held =
      plan::held_partials(plan::hosted_shards(rank, comm.size(), shards), shards).size();
  std::vector<std::vector<float>> values(held, std::vector<float>(count, 1));
  std::vector<float> result(count);
  std::vector<Buffer> partials;
  for (auto& one : values) partials.push_back({one.data(), count, DType::kFloat32});
  comm.reduce(partials, shards, {result.data(), count, DType::kFloat32}).wait();
  return counting->payload();
}

std::vector<plan::Traffic> counted(int shards, int workers, std::size_t count) {
  const auto links = comm::make_thread_links(workers);
  std::vector<std::future<plan::Traffic>> threads;
  for (const auto& link : links)
    threads.push_back(std::async(std::launch::async, reduce_and_count, link, shards, count));
  std::vector<plan::Traffic> traffic;
  for (auto& thread : threads) traffic.push_back(thread.get());
  return traffic;
}

// Short ones, which everybody owns; and longer ones, in slices that are not even.
TEST(TrafficOfDirect, IsWhatThePlanSays) {
  for (int shards = 1; shards <= 16; ++shards) {
    for (int workers = 2; workers <= shards; workers += kSlowBuild ? 3 : 1) {
      for (const std::size_t count : {1'000UL, 5'001UL}) {
        const auto planned =
            plan::direct_traffic(plan::plan_reduction(shards, workers), count, sizeof(float));
        const auto real = counted(shards, workers, count);
        ASSERT_EQ(real.size(), planned.size());
        for (std::size_t rank = 0; rank < real.size(); ++rank) {
          EXPECT_EQ(real[rank].sent, planned[rank].sent)
              << fmt::format("{} shards, {} elements, rank {} of {}", shards, count, rank, workers);
          EXPECT_EQ(real[rank].received, planned[rank].received)
              << fmt::format("{} shards, {} elements, rank {} of {}", shards, count, rank, workers);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::testing

// Several passes to one step, and batches of different sizes, against plain LibTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/data_parallel.h>
#include <lockstep/errors.h>

#include "tests/torch/replica_cases.h"

namespace lockstep::testing::replicas {
namespace {

using ::testing::HasSubstr;

TEST(Replica, NoSyncAddsUpAndTheNextBackwardAveragesTheSum) {
  in_world(2, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    {
      auto guard = model.no_sync();
      loss_of(*model, batch_of(world.rank())).backward();
    }
    EXPECT_FALSE(torch::equal(gradients(*model)[0], torch::zeros_like(gradients(*model)[0])));
    loss_of(*model, batch_of(2 + world.rank())).backward();
    auto expected = plain_mean(4);  // of four batches: half of the sum over two workers and steps
    for (auto& gradient : expected) gradient *= 2;
    expect_close(gradients(*model), expected);
  });
}

TEST(Replica, SynchronizeAveragesWhatNoSyncAddedUp) {
  in_world(3, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    {
      auto guard = model.no_sync();
      loss_of(*model, batch_of(world.rank())).backward();
    }
    model.synchronize();
    expect_close(gradients(*model), plain_mean(3));
  });
}

TEST(Replica, WeightedBackwardIsTheMeanOverAllSamples) {
  in_world(3, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    for (int step = 0; step < 2; ++step) {
      model.zero_grad();
      const std::int64_t rows = 2 + 3 * world.rank();
      backward(loss_of(*model, batch_of(world.rank(), rows)), rows);
      auto plain = seeded<TwoLayers>(kSeed);
      loss_of(*plain, torch::cat({batch_of(0, 2), batch_of(1, 5), batch_of(2, 8)})).backward();
      expect_close(gradients(*model), gradients(*plain));
    }
  });
}

TEST(Replica, WeightedAccumulationIsTheMeanOverAllSamplesToo) {
  in_world(2, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    if (world.rank() == 0) {
      auto guard = model.no_sync();
      model.backward(loss_of(*model, batch_of(0, 4)), 4);
    }
    if (world.rank() == 1) {
      auto guard = model.no_sync();
      model.backward(loss_of(*model, batch_of(1, 4)), 4);
    }
    model.backward(loss_of(*model, batch_of(2 + world.rank(), 1 + world.rank())), 1 + world.rank());
    auto plain = seeded<TwoLayers>(kSeed);
    loss_of(*plain, torch::cat({batch_of(0, 4), batch_of(1, 4), batch_of(2, 1), batch_of(3, 2)}))
        .backward();
    expect_close(gradients(*model), gradients(*plain));
  });
}

TEST(Replica, AWeightedSumIsNotAddedToAverages) {
  in_world(2, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    const auto pass = [&] { model.backward(loss_of(*model, batch_of(world.rank())), 5); };
    for (const bool weighted : {true, false}) {
      weighted ? pass() : loss_of(*model, batch_of(world.rank())).backward();
      EXPECT_THROW(pass(), BadInput);
      // The pass was broken off, on all workers.
      model = data_parallel(seeded<TwoLayers>(kSeed), world);
    }
    pass();
    model->zero_grad(false);
    pass();
    const auto once = gradients(*model);
    loss_of(*model, batch_of(world.rank())).backward();  // plain sums are added up as PyTorch's are
    for (std::size_t i = 0; i < once.size(); ++i)
      EXPECT_LT(largest_difference(gradients(*model)[i], 2 * once[i]), 1e-6);
  });
}

TEST(Replica, AWorkerWithoutSamplesTakesPartInAWeightedStepFromTheFirst) {
  in_world(3, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    for (int step = 0; step < 2; ++step) {
      model.zero_grad();
      if (world.rank() == 1) {
        model.synchronize();
      } else if (world.rank() == 2) {
        {
          auto guard = model.no_sync();
          model.backward(loss_of(*model, batch_of(2, 7)), 7);
        }
        model.synchronize();
      } else {
        model.backward(loss_of(*model, batch_of(0, 3)), 3);
      }
      auto plain = seeded<TwoLayers>(kSeed);
      loss_of(*plain, torch::cat({batch_of(0, 3), batch_of(2, 7)})).backward();
      expect_close(gradients(*model), gradients(*plain));
    }
  });
}

TEST(Replica, APassThatMissesParametersInNoSyncIsMadeWholeByTheNext) {
  in_world(2, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    {
      auto guard = model.no_sync();
      loss_of(*model, batch_of(world.rank())).backward();
    }
    model->first(batch_of(world.rank()))
        .pow(2)
        .mean()
        .backward();  // the second layer has had its gradient
    EXPECT_EQ(model.last_backward().buckets, 1U);
  });
}

// Buckets that are on the wire when a pass breaks off must not outlive the memory they use.
TEST(Replica, AModelDestroyedInABrokenPassEndsCleanly) {
  const auto outcomes = outcomes_in_world(2, [](World& world) {
    auto net = torch::nn::Sequential(torch::nn::Linear(400, 400), torch::nn::Linear(400, 400));
    net->register_parameter("unused", torch::zeros(3));
    auto model = data_parallel(net, world, {.first_bucket_bytes = 1, .bucket_bytes = 1});
    if (world.rank() == 0) model->forward(samples(1, {4, 400})).sum().backward();
    world.comm().barrier().wait();  // rank 1 stays and sends nothing
  });
  EXPECT_EQ(outcomes[0].kind, ErrorKind::kBadInput);
}

TEST(Replica, MixingWeightedAndPlainBackwardIsRefused) {
  in_world(1, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    {
      auto guard = model.no_sync();
      loss_of(*model, batch_of(0)).backward();
    }
    EXPECT_THROW(model.backward(loss_of(*model, batch_of(0)), 6), BadInput);
  });
}

}  // namespace
}  // namespace lockstep::testing::replicas

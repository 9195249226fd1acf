// Training where workers share memory: the bits of training through messages, and what only shared memory has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <lockstep/optim.h>

#include "tests/torch/nets.h"
#include "tests/torch/optimizers.h"
#include "torch/replica/tensors.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

// Deep enough that slices of three workers end inside of parameters.
struct Job {
  std::string optimizer = "sgd";
  double clip_norm = 0;
  bool half = false;
};

std::string trained_digest(const std::string& engine, int workers, const Job& job) {
  std::string digest;
  in_world(workers, engine, [&](World& world) {
    auto net = seeded<TwoLayers>(5, 40, 90, 30);
    if (job.half) net->to(torch::kBFloat16);
    auto model = data_parallel(net, world);
    const auto optimizer = make_optimizer(job.optimizer, model);
    optimizer->set_clip_norm(job.clip_norm);
    for (int step = 0; step < 8; ++step) {
      const auto seed = static_cast<std::uint64_t>(100 * step + world.rank());
      auto data = samples(seed, {5, 40});
      if (job.half) data = data.to(torch::kBFloat16);
      model->forward(data).pow(2).mean().backward();
      optimizer->step();
      optimizer->zero_grad();
    }
    EXPECT_TRUE(model.identical());
    if (world.leader()) digest = replica::digest(model.parameters());
  });
  return digest;
}

TEST(SharedTraining, HasTheBitsOfTrainingThroughMessages) {
  at::globalContext().setUserEnabledMkldnn(false);  // knows no bfloat16 on some processors
  std::vector<Job> jobs = {{.clip_norm = 0.05}, {.optimizer = "adamw", .clip_norm = 0.05}};
  for (const std::string& name : all_optimizer_names()) {
    jobs.push_back({.optimizer = name});
    jobs.push_back({.optimizer = name, .half = true});
  }
  for (const Job& job : jobs) {
    const std::string expected = trained_digest("thread", 3, job);
    EXPECT_EQ(trained_digest("shm", 3, job), expected)
        << job.optimizer << job.clip_norm << job.half;
  }
}

TEST(SharedTraining, TheStateExistsOnceAndEveryWorkerSeesAllOfIt) {
  in_world(3, "shm", [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(5), world);
    optim::SGD optimizer(model, {.lr = 0.1, .momentum = 0.9});
    model->forward(samples(7, {4, 8})).pow(2).mean().backward();
    optimizer.step();
    for (const auto& [name, tensor] : optimizer.state())
      EXPECT_GT(tensor.abs().max().item<float>(), 0) << name;
    world.comm().barrier().wait();
  });
}

TEST(SharedTraining, GradientsAreAveragesAfterBackwardAndReducedInOnePass) {
  in_world(2, "shm", [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(5), world);
    const auto loss = [&](int rank) {
      return model->forward(samples(static_cast<std::uint64_t>(rank), {4, 8})).pow(2).mean();
    };
    auto alone = seeded<TwoLayers>(5);
    for (int rank = 0; rank < 2; ++rank)
      (alone->forward(samples(static_cast<std::uint64_t>(rank), {4, 8})).pow(2).mean() / 2)
          .backward();
    loss(world.rank()).backward();
    for (std::size_t i = 0; i < alone->parameters().size(); ++i) {
      EXPECT_LT(largest_difference(model->parameters()[i].grad(), alone->parameters()[i].grad()),
                1e-6);
    }
    EXPECT_EQ(model.last_backward().launched_before_end, 0U);
    EXPECT_EQ(model.last_backward().buckets, 1U);
  });
}

TEST(SharedTraining, ClippingHasTorchsNumbers) {
  in_world(1, "thread", [](World& world) {
    auto plain = seeded<TwoLayers>(3);
    auto model = data_parallel(seeded<TwoLayers>(3), world);
    torch::optim::SGD reference(plain->parameters(), torch::optim::SGDOptions(0.1));
    optim::SGD optimizer(model, {.lr = 0.1});
    optimizer.set_clip_norm(0.03);
    for (int step = 0; step < 20; ++step) {
      const auto data = samples(static_cast<std::uint64_t>(step), {6, 8});
      plain->zero_grad();
      plain->forward(data).pow(2).mean().backward();
      const double norm = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.03);
      reference.step();
      optimizer.zero_grad();
      model->forward(data).pow(2).mean().backward();
      optimizer.step();
      EXPECT_NEAR(optimizer.last_norm(), norm, 1e-5 * norm);
    }
    for (std::size_t i = 0; i < plain->parameters().size(); ++i)
      EXPECT_LT(largest_difference(model->parameters()[i], plain->parameters()[i]), 1e-6);
  });
}

TEST(SharedTraining, AGradientThatIsNotFiniteEndsAClippedStepOnEveryWorker) {
  const auto outcomes = outcomes_in_world(
      2,
      [](World& world) {
        auto model = data_parallel(seeded<TwoLayers>(3), world);
        optim::SGD optimizer(model, {.lr = 0.1});
        optimizer.set_clip_norm(1);
        const float scale = world.rank() == 1 ? std::numeric_limits<float>::infinity() : 1;
        (model->forward(samples(1, {6, 8})).sum() * scale).backward();
        optimizer.step();
      },
      "shm");
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, ErrorKind::kBadInput);
    EXPECT_THAT(outcome.text, HasSubstr("norm of the gradients"));
  }
}

TEST(SharedTraining, AClipNormBelowZeroIsRefused) {
  in_world(1, "thread", [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(3), world);
    optim::SGD optimizer(model, {.lr = 0.1});
    EXPECT_THROW(optimizer.set_clip_norm(-1), BadInput);
    EXPECT_THROW(optimizer.set_clip_norm(std::nan("")), BadInput);
  });
}

}  // namespace
}  // namespace lockstep::testing

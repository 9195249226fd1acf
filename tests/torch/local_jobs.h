// Jobs whose shards train by themselves for a round, for tests: the same job by Lockstep and by LibTorch alone.
#pragma once

#include <gtest/gtest.h>
#include <lockstep/codec.h>
#include <lockstep/local_steps.h>
#include <lockstep/step.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan/rounds.h"
#include "tests/torch/loops.h"

namespace lockstep::testing::loops {

// What a test says of its job.
struct LocalHow {
  LocalSteps local = LocalSteps::sgd(3);
  std::string model = "mlp";
  std::string optimizer = "adamw";
  std::string codec = "none";
  std::string checkpoint = {};
  std::int64_t steps = kSteps;
  int shards = 4;
};

inline JobOptions options_of(const LocalHow& how) {
  JobOptions options = job_options(how.checkpoint);
  options.shards = how.shards;
  options.local_steps = how.local;
  return options;
}

inline std::unique_ptr<optim::Optimizer> optimizer_of(const std::string& name, Replica& model) {
  if (name == "plain") return std::make_unique<optim::SGD>(model, optim::SGDOptions{.lr = 0.1});
  if (name == "sgd")
    return std::make_unique<optim::SGD>(model, optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
  if (name == "rmsprop")
    return std::make_unique<optim::RMSprop>(model, optim::RMSpropOptions{.lr = 1e-2});
  if (name == "adagrad") {
    return std::make_unique<optim::Adagrad>(
        model, optim::AdagradOptions{.lr = 1e-2, .initial_accumulator_value = 0.1});
  }
  auto adamw = std::make_unique<optim::AdamW>(model, optim::AdamWOptions{.lr = 1e-2});
  if (name == "clipped") adamw->set_clip_norm(0.5);
  if (name == "limited") adamw->set_clip_value(0.01);
  return adamw;
}

inline std::vector<torch::Tensor> copies_of(const models::Net& net) {
  std::vector<torch::Tensor> all;
  for (const torch::Tensor& parameter : net.parameters()) all.push_back(parameter.detach().clone());
  return all;
}

// Trains, and returns the hash of the weights; into `weights` go the leader's.
inline std::string trained(World& world, const LocalHow& how,
                           std::vector<torch::Tensor>* weights = nullptr) {
  Job job(world, options_of(how));
  auto net = net_of(how.model);
  auto model = data_parallel(net, world, {.codec = codec::parse(how.codec)});
  const auto optimizer = optimizer_of(how.optimizer, model);
  Step step(job, "train", {optimizer.get()}, [&](const Shard& shard) {
    auto loss = models::loss(*net, shard.batch);
    shard.report("loss", loss.detach() * shard.batch.samples);
    return loss;
  });
  for (const GlobalBatch& batch : job.batches(data_of(how.model), {.steps = how.steps})) {
    const Outcome outcome = step(batch);
    EXPECT_NEAR(outcome.loss(), outcome.metric("loss"), 1e-5);
  }
  EXPECT_EQ(job.step(), how.steps);
  EXPECT_EQ(optimizer->steps(), how.steps);
  EXPECT_TRUE(model.identical());
  if (weights != nullptr && world.leader()) *weights = copies_of(*net);
  return job.weights_sha256();
}

inline std::string trained_alone(const LocalHow& how) {
  World world = World::over(connect_alone());
  return trained(world, how);
}

// Each of these jobs has one hash, and no two have the same.
inline void expect_one_hash_each(const std::map<std::string, LocalHow>& kinds) {
  std::set<std::string> all;
  for (const auto& [name, how] : kinds) {
    SCOPED_TRACE(name);
    const std::string expected = trained_alone(how);
    all.insert(expected);
    for (const std::string& engine : cpu_engines()) {
      for (const int workers : {2, 3, 4}) {
        const auto body = [&how = how](World& world) { return trained(world, how); };
        EXPECT_EQ(same_on_all(workers, engine, body), expected)
            << workers << " workers, " << engine;
      }
    }
  }
  EXPECT_EQ(all.size(), kinds.size());
}

// The samples of each shard in each step, as a job gives them out.
inline std::map<std::pair<std::int64_t, int>, Batch> batches_of_job(const LocalHow& how) {
  std::map<std::pair<std::int64_t, int>, Batch> batches;
  World world = World::over(connect_alone());
  Job job(world, options_of(how));
  One one(world, how.model);
  Step step(job, "train", {&one.optimizer}, one.loss());
  for (const GlobalBatch& batch : job.batches(data_of(how.model), {.steps = how.steps})) {
    for (std::int64_t number = 0; number < batch.steps(); ++number) {
      for (int shard = 0; shard < how.shards; ++shard)
        batches[{batch.step() + number, shard}] = batch.shard(shard, number);
    }
    step(batch);
  }
  return batches;
}

// An optimizer of optimizer_of(), as formulas of tensors. Each operation rounds once, as ours do: torch::optim rounds a product and
// a sum together where the processor can.
class PlainOptimizer {
 public:
  PlainOptimizer(std::string name, const models::Net& net) : name_(std::move(name)) {
    for (const torch::Tensor& parameter : net.parameters()) {
      mean_.push_back(torch::zeros_like(parameter));
      square_.push_back(torch::zeros_like(parameter));
    }
  }

  // Step `number`, from 1 on, with this part of the learning rate.
  void step(const std::vector<torch::Tensor>& weights, const std::vector<torch::Tensor>& gradients,
            std::int64_t number, double part = 1) {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      torch::Tensor w = weights[i];
      const torch::Tensor& g = gradients[i];
      torch::Tensor& m = mean_[i];
      torch::Tensor& v = square_[i];
      if (name_ == "plain") w.sub_(g * (0.1 * part));
      if (name_ == "sgd") {
        m = number == 1 ? g : m * 0.9 + g;
        w.sub_(m * (0.1 * part));
      }
      if (name_ != "adamw") continue;
      const auto t = static_cast<double>(number);
      const double lr = 1e-2 * part;
      m = m * 0.9 + g * (1 - 0.9);
      v = v * 0.999 + g * (1 - 0.999) * g;
      const auto change =
          m * (lr / (1 - std::pow(0.9, t))) / (v.sqrt() / std::sqrt(1 - std::pow(0.999, t)) + 1e-8);
      w.copy_(w * (1 - lr * 1e-2) - change);
    }
  }

 private:
  std::string name_;
  std::vector<torch::Tensor> mean_, square_;
};

// The outer SGD: d = Σ w_s·d_s / Σ w_s in float32, as a tree over four shards; then the weights move.
class PlainOuter {
 public:
  explicit PlainOuter(const LocalSteps& rule) : rule_(rule) {}

  void step(torch::Tensor weights, const std::vector<torch::Tensor>& differences,
            const std::vector<double>& shares) {
    const torch::NoGradGuard no_grad;
    double total = 0;
    std::vector<torch::Tensor> d;
    for (std::size_t shard = 0; shard < differences.size(); ++shard) {
      total += shares[shard];
      d.push_back(differences[shard] * shares[shard]);
    }
    torch::Tensor change = ((d[0] + d[1]) + (d[2] + d[3])) * (1 / total);
    if (rule_.outer_momentum > 0) {
      momentum_ = momentum_.defined() ? momentum_ * rule_.outer_momentum + change : change;
      change = rule_.outer_nesterov ? change + momentum_ * rule_.outer_momentum : momentum_;
    }
    weights.sub_(change * rule_.outer_lr);
  }

 private:
  LocalSteps rule_;
  torch::Tensor momentum_;
};

// A job of four shards by LibTorch alone: modules, autograd, and formulas of tensors.
class PlainRounds {
 public:
  PlainRounds(const LocalHow& how, torch::Device device) : how_(how), outer_(net_of(how.model)) {
    outer_->to(device);
    for (int shard = 0; shard < how.shards; ++shard) {
      nets_.push_back(net_of(how.model));
      nets_.back()->to(device);
      optimizers_.emplace_back(how.optimizer, *outer_);
    }
    movers_.assign(outer_->parameters().size(), PlainOuter(how.local));
  }

  // One round: `batches` of each shard, in order. A step of a short batch counts for a shard that has no samples in it, too.
  void round(const std::vector<std::vector<Batch>>& batches) {
    std::vector<double> shares;
    for (std::size_t shard = 0; shard < nets_.size(); ++shard) {
      const double samples = train(shard, batches[shard]);
      shares.push_back(samples * how_.shards / 16 / static_cast<double>(batches[shard].size()));
    }
    steps_ += static_cast<std::int64_t>(batches[0].size());
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < movers_.size(); ++i) {
      const torch::Tensor w = outer_->parameters()[i];
      std::vector<torch::Tensor> differences;
      for (const auto& net : nets_) differences.push_back(w - net->parameters()[i]);
      movers_[i].step(w, differences, shares);
    }
  }

  std::vector<torch::Tensor> weights() const { return copies_of(*outer_); }

 private:
  // Returns how many samples there were.
  double train(std::size_t shard, const std::vector<Batch>& batches) {
    models::Net& net = *nets_[shard];
    {
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < movers_.size(); ++i)
        net.parameters()[i].copy_(outer_->parameters()[i]);
    }
    double samples = 0;
    std::int64_t number = steps_;
    for (const Batch& batch : batches) {
      ++number;
      samples += static_cast<double>(batch.samples);
      if (batch.samples == 0) continue;
      const auto gradients = torch::autograd::grad({models::loss(net, batch)}, net.parameters());
      optimizers_[shard].step(net.parameters(), gradients, number);
    }
    return samples;
  }

  LocalHow how_;
  std::shared_ptr<models::Net> outer_;
  std::vector<std::shared_ptr<models::Net>> nets_;  // of shards
  std::vector<PlainOptimizer> optimizers_;
  std::vector<PlainOuter> movers_;  // of parameters
  std::int64_t steps_ = 0;
};

// The weights that the job should have.
inline std::vector<torch::Tensor> trained_plainly(const LocalHow& how, torch::Device device) {
  auto batches = batches_of_job(how);
  PlainRounds plain(how, device);
  const plan::Rounds rounds(how.local);
  for (std::int64_t step = 0; step < how.steps;) {
    const std::int64_t end = std::min(rounds.end(step), how.steps);
    std::vector<std::vector<Batch>> of_round(static_cast<std::size_t>(how.shards));
    for (int shard = 0; shard < how.shards; ++shard) {
      for (std::int64_t each = step; each < end; ++each) {
        Batch& batch = batches.at({each, shard});
        if (batch.samples > 0)
          batch = {batch.data.to(device), batch.target.to(device), batch.samples};
        of_round[static_cast<std::size_t>(shard)].push_back(batch);
      }
    }
    plain.round(of_round);
    step = end;
  }
  return plain.weights();
}

// The largest difference of an element.
inline double distance(const std::vector<torch::Tensor>& one,
                       const std::vector<torch::Tensor>& other) {
  EXPECT_EQ(one.size(), other.size());
  double most = 0;
  for (std::size_t i = 0; i < one.size(); ++i)
    most = std::max(most, (one[i] - other[i]).abs().max().item<double>());
  return most;
}

// Trains until the step `stop`, the end of a round, as a job does that is told to stop there: so the last round of the loop has
// not come yet, unless `stop` is the end.
inline std::string trained_until(World& world, const LocalHow& how, std::int64_t stop) {
  const plan::Rounds rounds(how.local);
  Job job(world, options_of(how));
  auto net = net_of(how.model);
  auto model = data_parallel(net, world, {.codec = codec::parse(how.codec)});
  const auto optimizer = optimizer_of(how.optimizer, model);
  Step step(job, "train", {optimizer.get()},
            [&](const Shard& shard) { return models::loss(*net, shard.batch); });
  for (const GlobalBatch& batch : job.batches(data_of(how.model), {.steps = how.steps})) {
    step(batch);
    if (stop < how.steps && rounds.end(batch.step() + batch.steps()) == stop) job.request_stop();
  }
  EXPECT_EQ(job.step(), stop);
  return job.weights_sha256();
}

}  // namespace lockstep::testing::loops

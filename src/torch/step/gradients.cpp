#include "torch/step/gradients.h"

#include <optional>
#include <utility>

namespace lockstep::steps {
namespace {

// How the model reduces what its banks hold; nothing if each worker has one shard.
std::optional<replica::Sharded> sharded(const Generation& generation,
                                        const plan::ShardedReduction& reduction) {
  if (generation.shards == generation.size()) return std::nullopt;
  const plan::Accumulation& mine = reduction.workers[static_cast<std::size_t>(generation.rank())];
  replica::Sharded rule{
      generation.shards, {}, plan_partials(mine, generation.hosted, generation.shards), &reduction};
  for (const auto& held : mine.held) rule.held.push_back(held.bank);
  return rule;
}

class FusedGradients : public StepGradients {
 public:
  FusedGradients(replica::Replicated& model, const Generation& generation, bool with_parity)
      : StepGradients(model), plan_(generation.reduction), run_(model, std::nullopt) {
    if (with_parity) model.banks().watch(model.comm(), model.faults());
  }

  bool meets() const override { return false; }
  void before_last(double, Waits) override {}
  void reduce(double, Waits) override {}
  optim::GradientSource finish(double total) override {
    model_.shards().finish_unreduced();
    model_.banks().use(0);
    return source(total);
  }
  optim::GradientSource source(double total) const override {
    return optim::GradientSource::everyones(model_.banks(), plan_, 1 / total);
  }
  std::chrono::nanoseconds exposed() const override { return {}; }

 private:
  const plan::ShardedReduction& plan_;
  replica::Replicated::Run run_;
};

class ReducedGradients : public StepGradients {
 public:
  ReducedGradients(replica::Replicated& model, const Generation& generation,
                   const plan::ShardedReduction& reduction)
      : StepGradients(model), run_(model, sharded(generation, reduction)) {}

  bool meets() const override { return true; }
  void before_last(double total, Waits waits) override {
    model_.shards().reduce_next(total, waits);
  }
  void reduce(double total, Waits waits) override { model_.shards().reduce(total, waits); }
  optim::GradientSource finish(double) override {
    model_.shards().complete();
    model_.reads_all_gradients() ? model_.banks().use_gradients() : model_.banks().use_averages();
    return source(1);
  }
  optim::GradientSource source(double /*total*/) const override {
    return optim::GradientSource::of(model_.averages(), model_.layout());
  }
  std::chrono::nanoseconds exposed() const override { return model_.shards().times().exposed(); }

 private:
  replica::Replicated::Run run_;
};

class EncodedGradients : public ReducedGradients {
 public:
  EncodedGradients(replica::Replicated& model, const Generation& generation,
                   std::unique_ptr<plan::ShardedReduction> reduction)
      : ReducedGradients(model, generation, *reduction),
        first_(generation.hosted.begin),
        reduction_(std::move(reduction)) {}

  void begin_shard(const plan::Accumulation::Step& planned) override {
    model_.banks().begin(planned.shard - first_);
  }

 private:
  int first_;                                          // of the hosted shards
  std::unique_ptr<plan::ShardedReduction> reduction_;  // of all workers; the run refers to it
};

}  // namespace

void StepGradients::begin_shard(const plan::Accumulation::Step& planned) {
  replica::Banks& banks = model_.banks();
  for (const auto& [into, from] : planned.before) banks.add(into, from);
  planned.begins ? banks.begin(planned.bank) : banks.use(planned.bank);
}

std::unique_ptr<StepGradients> make_gradients(replica::Replicated& model,
                                              const Generation& generation, Averages averages,
                                              bool with_parity) {
  using Holds = replica::Banks::Holds;
  const bool one_each = generation.shards == generation.size();
  const Holds holds = one_each ? Holds::kOneShard : Holds::kSums;
  if (replica::Encoding* const encoding = model.parts().encoding.get()) {
    auto separate = std::make_unique<plan::ShardedReduction>(
        plan::plan_separate_shards(generation.shards, generation.size()));
    encoding->take_memory(model.comm(), generation.shards);
    model.banks().make(model.comm(), separate->banks, holds);
    return std::make_unique<EncodedGradients>(model, generation, std::move(separate));
  }
  model.banks().make(model.comm(), generation.reduction.banks, holds);
  if (model.reads_all_gradients() && averages == Averages::kAnywhere)
    return std::make_unique<FusedGradients>(model, generation, with_parity);
  return std::make_unique<ReducedGradients>(model, generation, generation.reduction);
}

}  // namespace lockstep::steps

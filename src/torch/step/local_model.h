// A model of a job with local steps (lockstep/local_steps.h), and its optimizer.
//
//   outer    what all workers share: the weights after the last exchange, and the SGD that moves them. The rest of this folder
//            takes these two for the model and the optimizer of the Step
//   inner    what a shard trains: the program's model and optimizer, in a world of one worker. Between two rounds it has the
//            outer weights
//   kept     the state of the inner optimizer, for each shard (kept_state.h)
//
// A model that is streamed has several outer models, its fragments, with an SGD each. A shard also keeps the weights with which it
// has ended its last round, and the fragment that this round has exchanged: when the next one begins, the shard mixes that
// fragment with its own weights.
//
// Averaged state is a part of the outer model: it moves as weights do, with the learning rate 1 and without momentum.
//
// In asynchronous rounds one state is kept, for all shards. Workers share the weights of the round (course.h), or send each other
// what becomes of them, over a channel.
#pragma once

#include <lockstep/data_parallel.h>
#include <lockstep/local_steps.h>
#include <lockstep/optim.h>
#include <lockstep/world.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "control/inventory.h"
#include "torch/step/course.h"
#include "torch/step/kept_state.h"

namespace lockstep::steps {

// With backups, where workers share no memory.
[[noreturn]] void refuse_to_clip_a_mean();

// Threads:   one caller at a time.
// Blocking:  make(), rebind() and complete(), which are collective; at most the Comm's timeout.
// Failure:   BadInput from make() for a model or an optimizer that has no local steps, from begin() if the program has
//            written to parameters, and from rebind() if can_lose_state(); Unavailable if there is too little memory.
// Ownership: the StepCore owns it. It borrows the program's optimizer, and shares its model.
class LocalModel : public control::Member {
 public:
  // The workers of the world, and the shards that they train.
  static std::shared_ptr<LocalModel> make(World& world, optim::Optimizer& given,
                                          const LocalSteps& rule, int shards);
  void rebind(World& world) override;

  optim::Optimizer& inner() { return inner_; }
  // By fragment. fragment_of(): nothing if it is none of them.
  std::vector<optim::Optimizer*> outers() const;
  std::optional<int> fragment_of(const optim::Optimizer& outer) const;
  const Replica& largest_fragment() const;
  std::string name() const;  // empty: it has none
  bool is_streamed() const { return rule_.streaming.has_value(); }
  std::shared_ptr<torch::nn::Module> module() const;  // the program's; may be null

  // Before a loop: what the program has written to the model is what all begin with. was_written(): since show().
  void take_weights();
  bool was_written() const;
  // The inner model has the outer weights.
  void show();

  // An asynchronous round: open_round(). The state that it begins with, and that which it leaves, in the order of
  // Optimizer::state().
  void open_round();
  std::vector<torch::Tensor> state_before() const;
  std::vector<torch::Tensor> state_after() const;
  // Where workers share memory they have a course, and elsewhere a channel. Of workers that share the kept state, one writes what
  // a round leaves (writes_state()).
  bool has_course() const { return std::holds_alternative<Course>(round_); }
  // Whether a round of the generation before goes on in this one, or would in the next.
  bool round_goes_on() const;
  Course& course() { return std::get<Course>(round_); }
  Comm& channel() { return std::get<Comm>(round_); }
  bool writes_state() const { return kept_->is_written_here(); }

  // A shard's round: begin(), then its steps, each with step(), or with pass() if it has no samples; then end(), with the fragment
  // that the round exchanges, or kAll.
  static constexpr int kAll = -1;
  void begin(int shard);
  void step();
  void pass();
  void end(int shard, int exchanged);
  // What the program has set goes with the next exchange: all must have set the same.
  void announce();
  // The gradients of a fragment, of `tensors` one for each: after the last step, and those of a shard that has not begun yet.
  struct Difference {
    std::vector<torch::Tensor> tensors;
    std::vector<torch::Tensor> gradients;
  };
  Difference difference(int fragment) const;
  Difference difference_before(int fragment, int shard) const;
  // A round of so many steps is committed.
  void commit(std::int64_t steps);

  // Every worker has the state of all shards. Collective.
  void complete();
  // Whether some state is known to the worker of its shard alone. After an asynchronous round all have it.
  bool can_lose_state() const { return kept_ && kept_->is_spread() && !rule_.asynchronous; }

  // For checkpoints: the outer weights by the names of the inner ones; everything else, and numbers.
  std::vector<NamedTensor> weights() const;
  std::vector<NamedTensor> state() const;
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps);

 private:
  LocalModel(World& world, optim::Optimizer& given, const LocalSteps& rule, int shards);
  // An outer model, and the SGD that moves it.
  struct Fragment {
    Replica model;
    std::shared_ptr<optim::Optimizer> outer;
    std::size_t first = 0;  // of trained_
  };
  void add_fragments(World& world);
  void add_fragment(World& world, const std::vector<NamedTensor>& parameters);
  std::vector<NamedTensor> outer_trained() const;  // of all fragments
  Difference difference_to(int fragment, const std::vector<torch::Tensor>& weights) const;
  void count_to(std::int64_t steps);
  void go_alone();
  void take_memory();
  void take_course(World& world);
  // How many states are kept.
  int kept_states() const { return rule_.asynchronous ? 1 : shards_; }
  // What a shard keeps: state of the optimizer; if the model is streamed, then weights, and the number of a fragment.
  std::vector<NamedTensor> to_keep() const;
  void read_state(int shard);
  void mix(const std::vector<torch::Tensor>& kept);
  std::vector<NamedTensor> averaged() const;  // state of the inner optimizer, if it is averaged
  std::int64_t versions() const;

  optim::Optimizer& inner_;
  LocalSteps rule_;
  int shards_;
  World alone_;
  std::vector<NamedTensor> trained_;  // of the inner model
  std::vector<Fragment> fragments_;   // one, unless the model is streamed
  std::vector<NamedTensor> first_;    // the state that a round begins with, if it is reset
  std::optional<KeptState> kept_;     // nothing: state is not kept
  // Of asynchronous rounds: where workers share memory, and where they do not.
  std::variant<std::monostate, Course, Comm> round_;
  std::int64_t steps_ = 0;   // that each shard has taken
  std::int64_t shown_ = -1;  // versions() after show(); −1: a shard trains
};

}  // namespace lockstep::steps

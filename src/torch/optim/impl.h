// What every optimizer holds, and the update rules behind one interface.
#pragma once

#include <lockstep/optim.h>

#include <array>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/core/parity.h"
#include "torch/kernels/device_update.h"
#include "torch/optim/gradient_source.h"
#include "torch/replica/replicated.h"

namespace lockstep::optim {

// A stretch of one parameter: its values, its gradient, and its part of each state memory.
struct Piece {
  DType dtype = DType::kFloat32;
  void* parameter = nullptr;
  const void* gradient = nullptr;
  std::array<void*, 2> state{};  // as many as the rule has
  std::size_t count = 0;
  bool watched = false;
};

// One update rule with its options.
class Rule {
 public:
  virtual ~Rule() = default;
  // step from 1; the parities, of a piece that is watched, of all that is updated in place.
  virtual comm::Parities update(const Piece& piece, std::int64_t step) const = 0;
  virtual int states() const = 0;  // how many of them it reads and writes
  virtual double lr() const = 0;
  virtual void set_lr(double lr) = 0;
  virtual std::string options() const = 0;  // everything else that decides its result

  // The same options as LibTorch has them; and the learning rate of such that somebody may have changed since. BadInput
  // if anything else was.
  virtual std::unique_ptr<torch::optim::OptimizerOptions> as_torch() const = 0;
  virtual void follow(const torch::optim::OptimizerOptions& given) = 0;

  // For a GPU: which kernel, and the numbers that it reads for a step.
  virtual kernels::UpdateRule device_rule() const = 0;
  virtual std::vector<std::byte> numbers(std::int64_t step) const = 0;
};

class DeviceStep;

struct Optimizer::Impl {
  struct Kind {
    std::string name;
    std::vector<std::string> states;  // names of the state memories, one value per element each
  };

  // rules[0] is for the parameters outside of all groups; rules[1 + i] for group_members[i].
  Impl(Replica& model, Kind kind, std::vector<std::unique_ptr<Rule>> rules,
       const std::vector<std::vector<torch::Tensor>>& group_members);
  ~Impl();

  // What every worker says of a step, and what becomes of it: otherwise replicas would differ. A worker that cannot take
  // the step says so, and all of them fail. Where workers share memory they hear it before anybody updates; elsewhere
  // after the update, which then is of no further use.
  struct Said {
    std::shared_ptr<const control::Announcement> all;
    std::exception_ptr cannot;  // this worker
  };
  Said say_step(const GradientSource& source);
  void hear_step(const Said& said);

  // One step; where workers share memory each of them updates the slice that it owns and hands it out.
  // Collective there. step.cpp
  void step(const GradientSource& source);
  torch::Tensor state_view(std::size_t memory, std::size_t entry) const;
  double norm_of_last_step() const;
  void prepare_clipping() const;
  static std::string diverged(double norm, std::int64_t step);

  // On a GPU parameters of half types have float32 masters, on which updates compute; the parameters are what they are
  // rounded to. They are the last of the memories, named "master"; null without.
  const replica::FlatMemory* masters() const { return has_masters ? &memories.back() : nullptr; }
  bool has_master(std::size_t entry) const;
  // Re-reads masters from parameters that were changed from outside.
  void refresh_masters();
  // They are what the parameters are of, as after a checkpoint has been read.
  void trust_masters();

  std::shared_ptr<replica::Replicated> model;
  Kind kind;
  std::vector<std::unique_ptr<Rule>> rules;
  std::vector<double> ratios;                 // of each rule's learning rate to that of the first
  std::vector<std::size_t> rule_of;           // by entry of the layout
  std::vector<replica::FlatMemory> memories;  // of the state, once per host
  std::int64_t steps = 0;
  // Steps that left a parameter alone because no worker had a gradient for it, by entry; only for models that allow it.
  // Its rule then counts only the others, as torch::optim does.
  std::vector<std::int64_t> left_alone;
  std::int64_t steps_of(std::size_t entry) const {
    return left_alone.empty() ? steps : steps - left_alone[entry];
  }
  bool leaves_alone(std::size_t entry) const {
    return !model->banks().absent().empty() && model->banks().absent()[entry];
  }
  std::vector<double> rates();  // learning rates, by rule
  class Scheduled;
  std::shared_ptr<Scheduled> scheduled;  // once a scheduler of LibTorch's has asked for it
  void follow_scheduler();               // takes the learning rates that it has set
  void set_rate(std::size_t rule, double lr);
  torch::Tensor parameter_of(std::size_t entry) const;
  double clip_norm = 0;  // 0: no clipping
  double last_norm = 0;
  std::chrono::nanoseconds last_wait{0};  // for other workers, in the last step

  // Whether updates look for bits that changed on their own since the last one: only for whoever knows that nobody
  // else writes to parameters and state. Faults are noted with the model.
  bool watches = false;
  std::vector<comm::Parity> resting;  // by own piece, after the last update; empty: not known
  std::vector<comm::Parity> applied;  // the gradients of it, where every worker updates everything
  bool updates_everything() const { return !together; }
  // Compares without an update: before what is there is written to a file.
  void check_at_rest();
  // What an update on a GPU has seen, by piece; it is known some time after step(): collect_watched() waits for it.
  void note_watched(std::span<const comm::Parity> before, std::span<const comm::Parity> after,
                    std::span<const comm::Parity> gradients);
  void collect_watched();
  void forget_watched();
  // On a GPU: what the next step takes along, in the order of the current stream, to pinned memory of the host.
  kernels::Note note;

  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::size_t size() const { return end - begin; }
  };
  const Range& own_pieces() const { return own; }
  bool shares_memory() const { return together; }

 private:
  void make_memories();
  void step_on_device();
  void count_left_alone();
  void assign_groups(const std::vector<std::vector<torch::Tensor>>& group_members);
  void agree_on_options() const;
  void meet();
  void gather_own_slice(const GradientSource& source);
  double clip_factor();
  void update_own_slice(const GradientSource& source);
  class OnHost;
  comm::Parity parity_at_rest(const plan::Stretch& piece, const OnHost& parameters,
                              const std::vector<OnHost>& states) const;
  void leave_alone(std::size_t number, bool seen_before);
  const void* read(std::size_t number, GradientReader& gradients);
  void update_piece(std::size_t number, GradientReader& gradients, bool compares);

  bool has_masters = false;
  plan::Layout
      state_layout;  // of the memories: the model's, or with masters its entries in float32
  std::vector<std::int64_t>
      versions;  // of parameters after the last update, by entry; with masters
  std::unique_ptr<DeviceStep> on_device;
  bool together = false;  // workers share memory
  Range own;              // the pieces that this worker owns
  std::optional<replica::FlatMemory> block_sums;
};

// What an optimizer holds, for the layers above.
struct Inside {
  static Optimizer::Impl& of(const Optimizer& optimizer) { return *optimizer.impl_; }
};
inline Optimizer::Impl& inside(const Optimizer& optimizer) {
  return Inside::of(optimizer);
}

}  // namespace lockstep::optim

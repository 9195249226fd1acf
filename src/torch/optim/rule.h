// Update rules behind one interface.
#pragma once

#include <lockstep/buffer.h>
#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flat/device_update.h"
#include "flat/parity.h"

namespace lockstep::optim {

// A stretch of one parameter: its values, its gradient, and its part of each state memory.
struct Piece {
  DType dtype = DType::kFloat32;
  void* parameter = nullptr;
  const void* gradient = nullptr;
  std::array<void*, 2> state{};  // as many as the rule has
  std::size_t count = 0;
};

// One update rule with its options.
class Rule {
 public:
  virtual ~Rule() = default;
  // step from 1. The watched one gives the parities of all that is updated in place.
  virtual void update(const Piece& piece, std::int64_t step) const = 0;
  virtual flat::Parities update_watched(const Piece& piece, std::int64_t step) const = 0;
  virtual int states() const = 0;  // how many of them it reads and writes
  virtual double lr() const = 0;
  virtual void set_lr(double lr) = 0;
  virtual std::string options() const = 0;  // everything else that decides its result

  // The same options as LibTorch has them; and the learning rate of such that somebody may have changed since. BadInput
  // if anything else was.
  virtual std::unique_ptr<torch::optim::OptimizerOptions> as_torch() const = 0;
  virtual void follow(const torch::optim::OptimizerOptions& given) = 0;

  // For a GPU: which kernel, and the numbers that it reads for a step.
  virtual flat::UpdateRule device_rule() const = 0;
  virtual std::vector<std::byte> numbers(std::int64_t step) const = 0;
};

}  // namespace lockstep::optim

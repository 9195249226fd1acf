// Averages of numbers over all workers: losses, right answers, tokens.
//
//   lockstep::Metrics metrics(world, {"loss", "right"});
//   for (const auto& batch : *evaluation) {
//     …
//     metrics.add("loss", loss_sum, samples);
//     metrics.add("right", right, samples);
//   }
//   const lockstep::Averages all = metrics.reduce();  // the other workers' numbers are on their way
//   fmt::print("accuracy {}\n", all.mean("right"));   // waits for them
#pragma once

#include <lockstep/world.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lockstep {

// What all workers have added between two calls of Metrics::reduce().
//
// Threads:   one caller at a time.
// Blocking:  the first call waits for the other workers, at most the world's timeout.
// Failure:   BadInput for a name that the Metrics does not have, and for the mean of a name to which
//            nobody added a weight; PeerLost, Timeout.
// Ownership: a value. It may be kept, and read after the Metrics has ended; the world must outlive
//            it.
class Averages {
 public:
  struct Pending;
  explicit Averages(std::shared_ptr<Pending> pending) : pending_(std::move(pending)) {}

  double mean(const std::string& name) const;  // sum() / weight()
  double sum(const std::string& name) const;
  double weight(const std::string& name) const;

 private:
  std::shared_ptr<Pending> pending_;
};

// Adds numbers up, by name, and averages them over all workers. Sums are exact: they are rounded
// once, at the end. So they do not depend on the number of workers, nor on who has which batch. A
// worker that has nothing to add adds nothing, and what an idle worker of UnevenInputs adds is left out.
//
// Threads:   one caller at a time.
// Blocking:  the constructor is collective. reduce() is, too, but waits for nobody. If tensors of a
//            GPU were added, it waits for that GPU.
// Failure:   the constructor throws BadInput for a name that is empty or used twice, and Mismatch if
//            workers have different names. add() throws BadInput for an unknown name, a weight that
//            is negative or not finite, and a tensor that does not have one element. PeerLost,
//            Timeout. The numbers themselves may be anything: NaN and infinity are kept. A tensor
//            with a weight that is negative or not finite makes the weight and the mean NaN.
// Ownership: the world must outlive it. Tensors are kept until reduce().
class Metrics {
 public:
  Metrics(World& world, const std::vector<std::string>& names);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // `sum` is a sum over `weight` samples, tokens or steps. The tensors are read in reduce(): a GPU
  // is not waited for here.
  void add(const std::string& name, double sum, double weight);
  void add(const std::string& name, const torch::Tensor& sum, double weight);
  void add(const std::string& name, const torch::Tensor& sum, const torch::Tensor& weight);

  // Sends what was added since the last call. Every worker calls it as often as the others.
  Averages reduce();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep

#include "bench/allreduce/worker.h"

#include <fmt/format.h>
#include <lockstep/arena.h>
#include <lockstep/errors.h>
#include <lockstep/world.h>

#include <algorithm>
#include <memory>

#include "base/environment.h"
#include "bench/measure/cores.h"
#include "flat/tree_sum.h"
#include "plan/traffic.h"
#include "plan/tree.h"

namespace lockstep::bench {
namespace {

// Gloo's workers have a second thread that needs room; see kFree in bench/allreduce.cpp.
bool needs_free_cores(const std::string& kind) {
  return kind.starts_with("gloo:");
}

// The common part of all systems whose workers form a world.
class InWorld : public Reducer {
 public:
  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  void barrier() override { world_.comm().barrier().wait(); }
  void max(std::span<double> values) override {
    world_.comm()
        .all_reduce({values.data(), values.size(), DType::kFloat64}, {ReduceOp::kMax})
        .wait();
  }

 protected:
  World& world() { return world_; }

 private:
  World world_ = join();
};

// Lockstep's all-reduce over the launcher's engine.
class Engine : public InWorld {
 public:
  float* memory(std::size_t bytes) override {
    arena_ = world().comm().share(bytes);
    if (!arena_) {
      arena_ = world().comm().share_on_host(bytes);
      if (arena_) algorithm_ = Algorithm::kTwoLevels;
    }
    if (arena_) return reinterpret_cast<float*>(arena_->data());
    own_.resize(bytes / sizeof(float));
    return own_.data();
  }
  void all_reduce(float* data, std::size_t count) override {
    world().comm().all_reduce({data, count, DType::kFloat32}, {.algorithm = algorithm_}).wait();
  }

 private:
  Algorithm algorithm_ = Algorithm::kAutomatic;
  std::shared_ptr<SharedArena> arena_;
  std::vector<float> own_;  // if the engine shares no memory
};

// Adds rank after rank. Unlike the tree's, this order depends on the number of workers.
plan::Reduction in_order_of_ranks(int workers) {
  plan::Reduction plan{.shards = workers, .workers = workers, .operands = {}, .additions = {}};
  for (int rank = 0; rank < workers; ++rank) plan.operands.push_back({rank, {rank, rank + 1}});
  for (int rank = 1; rank < workers; ++rank)
    plan.additions.push_back({rank == 1 ? 0 : workers + rank - 2, rank});
  return plan;
}

// What the engine `shm` does, with any order of addition: every worker reads its slice of all
// buffers and stores the sum to all of them.
class InPlace : public InWorld {
 public:
  using Plan = plan::Reduction (*)(int workers);
  // kNever: the limit for operands that are dirty in other cores' caches.
  enum class Meet { kBeforeAndAfter, kNever };
  InPlace(Plan plan, Meet meet)
      : sum_(plan(size()), flat::Fold{DType::kFloat32}),
        buffers_(static_cast<std::size_t>(size())),
        outs_(buffers_.size()),
        meet_(meet) {}

  float* memory(std::size_t bytes) override {
    arena_ = world().comm().share(bytes);
    if (!arena_) throw Unavailable("workers that sum in place share memory: use the engine shm");
    return reinterpret_cast<float*>(arena_->data());
  }
  void all_reduce(float* data, std::size_t count) override {
    const auto bounds = plan::even_bounds(count, size(), kLine);
    const auto own = static_cast<std::size_t>(rank());
    const auto offset = reinterpret_cast<std::byte*>(data + bounds[own]) - arena_->data();
    for (int i = 0; i < size(); ++i) {
      buffers_[static_cast<std::size_t>(i)] = arena_->of(i) + offset;
      outs_[static_cast<std::size_t>(i)] = arena_->of((rank() + i) % size()) + offset;
    }
    if (waits()) barrier();
    sum_.run({const_cast<const void* const*>(buffers_.data()), buffers_.size()},
             std::span<void* const>(outs_), bounds[own + 1] - bounds[own]);
    if (waits()) barrier();
  }
  bool waits() const override { return meet_ != Meet::kNever; }

 private:
  static constexpr std::size_t kLine = 64 / sizeof(float);

  flat::TreeSum sum_;
  std::vector<void*> buffers_;
  std::vector<void*> outs_;  // the same, beginning with this worker's
  Meet meet_;
  std::shared_ptr<SharedArena> arena_;
};

// What one worker must do at least: read its slice of all buffers, add in the order of the tree,
// and store the sum to all buffers. Here all of them are in the worker's own memory, so that nobody
// waits.
class Limit : public InWorld {
 public:
  Limit()
      : sum_(plan::plan_reduction(size(), size()), flat::Fold{DType::kFloat32}),
        buffers_(static_cast<std::size_t>(size())) {}

  float* memory(std::size_t bytes) override {
    own_.resize(bytes / sizeof(float) + buffers_.size());  // slices are rounded up
    return own_.data();
  }
  void all_reduce(float* data, std::size_t count) override {
    const std::size_t slice = (count + buffers_.size() - 1) / buffers_.size();
    for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i] = data + i * slice;
    sum_.run({const_cast<const void* const*>(buffers_.data()), buffers_.size()},
             std::span<void* const>(buffers_), slice);
  }
  bool waits() const override { return false; }

 private:
  flat::TreeSum sum_;
  std::vector<void*> buffers_;
  std::vector<float> own_;
};

std::unique_ptr<Reducer> make_reducer(const std::string& kind) {
  if (kind == "engine") return std::make_unique<Engine>();
  const auto in_order_of_tree = [](int workers) { return plan::plan_reduction(workers, workers); };
  if (kind == "in-place-tree")
    return std::make_unique<InPlace>(in_order_of_tree, InPlace::Meet::kBeforeAndAfter);
  if (kind == "in-place-ranks")
    return std::make_unique<InPlace>(in_order_of_ranks, InPlace::Meet::kBeforeAndAfter);
  if (kind == "limit") return std::make_unique<Limit>();
  if (kind == "limit-dirty")
    return std::make_unique<InPlace>(in_order_of_tree, InPlace::Meet::kNever);
  if (kind.starts_with("sockets:"))
    return make_sockets_peer(std::stoi(kind.substr(8)), Idle::kSleeps);
  if (kind.starts_with("sockets-spin:"))
    return make_sockets_peer(std::stoi(kind.substr(13)), Idle::kSpins);
  if (kind.starts_with("gloo:")) return make_gloo_peer(kind.substr(5));
  throw BadInput(fmt::format("bench-worker: there is no system {}", kind));
}

}  // namespace

int number_of(const char* variable) {
  return static_cast<int>(base::environment_number(variable, 0, 1 << 20).value_or(0));
}

int allreduce_worker(const std::vector<std::string>& arguments) {
  if (arguments.empty()) throw BadInput("bench-worker is started by `lockstep bench`");
  if (!needs_free_cores(arguments.front()))
    pin_worker(number_of("RANK"), std::max(number_of("WORLD_SIZE"), 1));
  const std::unique_ptr<Reducer> reducer = make_reducer(arguments.front());
  measure(*reducer, parse_measure_options(std::span(arguments).subspan(1)));
  reducer->barrier();
  return 0;
}

}  // namespace lockstep::bench

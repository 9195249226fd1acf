// Activation checkpointing.
//
//   first run   in forward, with a graph, which is dropped at once. Its leaves are the parameters that the function uses
//   node        stands for the function in the program's graph. Its edges lead to the inputs and to these parameters
//   second run  in backward, by the node, with a graph again
//
// The gradients of the second run are not accumulated there. The node hands them on, to inputs and parameters alike. So
// the pass of the program sees every parameter once, wherever it is used, as without a checkpoint: hooks are called once,
// passes that are restricted to some parameters stay so, and a search in the graph finds the parameters.
#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <lockstep/activation_checkpoint.h>
#include <lockstep/errors.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "torch/device/device.h"
#include "torch/device/generators.h"
#include "torch/replica/tensors.h"
#include "torch/step/arithmetic.h"
#include "torch/step/autocast_state.h"

namespace lockstep {
namespace {

using torch::autograd::Node;
using Tensors = std::vector<torch::Tensor>;
using Function = std::function<Tensors(const Tensors&)>;

[[noreturn]] void refuse(const std::string& why) {
  throw BadInput("checkpoint(): " + why);
}

bool wants_gradient(const torch::Tensor& tensor) {
  return tensor.defined() && tensor.requires_grad();
}

// What a run gets: new leaves with the values of the inputs. It sees them through views, because autocast takes a leaf for
// a parameter, and keeps its cast.
struct Inputs {
  explicit Inputs(const Tensors& given) {
    const at::AutoGradMode with_graph(true);  // also in backward
    for (const torch::Tensor& input : given) {
      const bool wants = wants_gradient(input);
      leaves.push_back(input.defined() ? input.detach().requires_grad_(wants) : input);
      seen.push_back(wants ? leaves.back().view_as(leaves.back()) : leaves.back());
    }
  }
  bool has(const torch::Tensor& leaf) const {
    return std::any_of(leaves.begin(), leaves.end(),
                       [&](const torch::Tensor& input) { return input.is_same(leaf); });
  }
  // Whether a node of the graph was made earlier. LibTorch counts the nodes of each thread.
  bool came_after(const Node& node) const {
    return node.sequence_nr() < next_node ||
           node.thread_id() != at::RecordFunction::currentThreadId();
  }

  std::uint64_t next_node = at::sequence_number::peek();
  Tensors leaves;
  Tensors seen;
};

Tensors run(const Function& function, const Inputs& inputs) {
  const at::AutoGradMode with_graph(true);
  at::autocast::clear_cache();  // no cast weight comes from outside …
  Tensors outputs = function(inputs.seen);
  at::autocast::clear_cache();  // … or goes there
  return outputs;
}

// The leaves that outputs of a run depend on, without its inputs.
Tensors leaves_of(const Tensors& outputs, const Inputs& inputs) {
  Tensors leaves;
  std::unordered_set<const Node*> seen;
  std::vector<std::shared_ptr<Node>> next;
  for (const torch::Tensor& output : outputs) {
    if (wants_gradient(output))
      next.push_back(torch::autograd::impl::gradient_edge(output).function);
  }
  while (!next.empty()) {
    const std::shared_ptr<Node> node = std::move(next.back());
    next.pop_back();
    if (!node || !seen.insert(node.get()).second) continue;
    if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node.get())) {
      if (!inputs.has(leaf->variable)) leaves.push_back(leaf->variable);
    } else if (inputs.came_after(*node)) {
      refuse(
          fmt::format("the function uses a tensor of the graph ({}) that is not among its "
                      "inputs: pass it in as an input",
                      node->name()));
    } else {
      for (const auto& edge : node->next_edges()) next.push_back(edge.function);
    }
  }
  return leaves;
}

// The generators that a run with these inputs may draw from.
device::Generators generators_for(const Tensors& inputs) {
  std::vector<torch::Device> devices;
  for (const torch::Tensor& input : inputs) {
    if (!input.defined()) continue;
    devices.push_back(input.device());
    if (device::is_captured(device::of(input))) {
      refuse(
          "random numbers of a CUDA graph cannot be drawn again in its backward pass: if the "
          "function draws none, set random = false");
    }
  }
  return device::Generators(devices);
}

bool same(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return torch::equal(x, y); });
}

// The random numbers of the first run, for the second.
class Draws {
 public:
  explicit Draws(device::Generators generators)
      : generators_(std::move(generators)), before_(generators_.states()) {}
  void first_run_ended() { after_ = generators_.states(); }

  // As long as it lives, the generators are where they were before the first run, if that has drawn.
  class Again {
   public:
    explicit Again(const Draws& draws) : draws_(draws) {
      if (same(draws_.before_, draws_.after_)) return;
      turn_.emplace();
      found_ = draws_.generators_.states();
      draws_.generators_.set(draws_.before_);
    }
    ~Again() {
      if (turn_) draws_.generators_.set(found_);
    }
    Again(const Again&) = delete;
    Again& operator=(const Again&) = delete;

    void check() const {
      if (!turn_ || same(draws_.generators_.states(), draws_.after_)) return;
      refuse(
          "the function drew other random numbers in backward than in forward: another thread "
          "draws from LibTorch's default generator at the same time, or the function does not do "
          "the same again (train() and eval() between the two?). If it draws none at all, set "
          "random = false");
    }

   private:
    const Draws& draws_;
    std::optional<steps::GeneratorTurn> turn_;
    Tensors found_;
  };

 private:
  device::Generators generators_;
  Tensors before_, after_;
};

Tensors copies_of(const Tensors& tensors) {
  Tensors copies;
  for (const torch::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

// Writes values without LibTorch's count of writes: other graphs may have kept the tensors.
void write(const Tensors& to, const Tensors& values) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < to.size(); ++i) to[i].variable_data().copy_(values[i]);
}

// As long as it lives, buffers may have other values.
class OtherValues {
 public:
  OtherValues(const Tensors& buffers, const Tensors& values)
      : buffers_(buffers), found_(copies_of(buffers)) {
    write(buffers_, values);
  }
  ~OtherValues() { write(buffers_, found_); }
  OtherValues(const OtherValues&) = delete;
  OtherValues& operator=(const OtherValues&) = delete;

 private:
  const Tensors& buffers_;
  Tensors found_;
};

// As long as it lives, parameters have no hooks. LibTorch 2 calls them whenever a gradient is asked for, and they are to
// be called once, when the gradient is accumulated.
class WithoutHooks {
#if TORCH_VERSION_MAJOR >= 2
 public:
  explicit WithoutHooks(const Tensors& leaves) : leaves_(leaves) {
    for (const torch::Tensor& leaf : leaves_)
      hooks_.push_back(std::exchange(torch::autograd::impl::hooks(leaf), {}));
  }
  ~WithoutHooks() {
    for (std::size_t i = 0; i < leaves_.size(); ++i)
      torch::autograd::impl::hooks(leaves_[i]) = std::move(hooks_[i]);
  }
  WithoutHooks(const WithoutHooks&) = delete;
  WithoutHooks& operator=(const WithoutHooks&) = delete;

 private:
  const Tensors& leaves_;
  std::vector<std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>> hooks_;
#else
 public:
  explicit WithoutHooks(const Tensors&) {}
  ~WithoutHooks() {}  // NOLINT: used as a scope
#endif
};

// "float32 [3, 4]"; whether it wants a gradient counts as well.
std::vector<std::string> kinds_of(const Tensors& outputs) {
  std::vector<std::string> kinds;
  for (const torch::Tensor& output : outputs) {
    kinds.push_back(!output.defined() ? "undefined"
                                      : replica::describe(output) +
                                            (output.requires_grad() ? "" : " without a gradient"));
  }
  return kinds;
}

std::vector<std::int64_t> versions_of(const Tensors& tensors) {
  std::vector<std::int64_t> versions;
  for (const torch::Tensor& tensor : tensors)
    versions.push_back(tensor.defined() ? static_cast<std::int64_t>(tensor._version()) : 0);
  return versions;
}

// The node. Its edges lead to the inputs, then to the leaves; its own inputs are the outputs that want gradients.
class Checkpoint : public Node {
 public:
  Checkpoint(Function function, CheckpointOptions options, const Tensors& inputs);

  // The outputs, with this node as their graph.
  static Tensors forward(const std::shared_ptr<Checkpoint>& node, const Tensors& inputs);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  void release_variables() override {
    for (auto& input : inputs_) input.reset_data();
  }
  std::string name() const override { return "lockstep::checkpoint"; }

 private:
  Tensors run_again(const Inputs& inputs);
  void check_same(const Tensors& outputs, const Inputs& inputs);

  Function function_;
  CheckpointOptions options_;
  std::vector<torch::autograd::SavedVariable> inputs_;
  Tensors buffers_;  // their values before the first run
  Draws draws_;
  AutocastState on_cpu_, on_cuda_;
  Tensors leaves_;
  std::vector<std::int64_t> versions_;  // of the leaves
  std::vector<std::string> kinds_;      // of the outputs
};

Checkpoint::Checkpoint(Function function, CheckpointOptions options, const Tensors& inputs)
    : function_(std::move(function)),
      options_(std::move(options)),
      buffers_(copies_of(options_.buffers)),
      draws_(options_.random ? generators_for(inputs) : device::Generators()),
      on_cpu_(AutocastState::of(torch::kCPU)),
      on_cuda_(AutocastState::of(torch::kCUDA)) {}

Tensors Checkpoint::forward(const std::shared_ptr<Checkpoint>& node, const Tensors& inputs) {
  const auto versions = versions_of(inputs);
  const Inputs detached(inputs);
  Tensors outputs = run(node->function_, detached);
  node->draws_.first_run_ended();
  if (versions_of(inputs) != versions)
    refuse("the function changes its input in place, and backward could not run it again");
  node->leaves_ = leaves_of(outputs, detached);
  node->versions_ = versions_of(node->leaves_);
  node->kinds_ = kinds_of(outputs);
  torch::autograd::edge_list edges;
  for (const Tensors* tensors : {&inputs, &std::as_const(node->leaves_)}) {
    for (const torch::Tensor& tensor : *tensors) {
      edges.push_back(wants_gradient(tensor) ? torch::autograd::impl::gradient_edge(tensor)
                                             : torch::autograd::Edge());
    }
  }
  node->set_next_edges(std::move(edges));
  for (const torch::Tensor& input : inputs) node->inputs_.emplace_back(input, false);
  for (torch::Tensor& output : outputs) {
    const bool wants = wants_gradient(output);
    if (output.defined()) output = output.detach();
    if (wants) torch::autograd::set_history(output, node);
  }
  return outputs;
}

void Checkpoint::check_same(const Tensors& outputs, const Inputs& inputs) {
  if (kinds_of(outputs) != kinds_) {
    refuse(
        "the function returned tensors of other shapes or types in backward than in forward: it "
        "must do the same again");
  }
  const Tensors leaves = leaves_of(outputs, inputs);
  const bool same_leaves = std::equal(leaves.begin(), leaves.end(), leaves_.begin(), leaves_.end(),
                                      [](const auto& a, const auto& b) { return a.is_same(b); });
  if (!same_leaves) {
    refuse(
        "the function used other parameters in backward than in forward: it must do the same "
        "again");
  }
}

Tensors Checkpoint::run_again(const Inputs& inputs) {
  const Autocast on_cpu = on_cpu_.again();
  const Autocast on_cuda = on_cuda_.again();
  const Draws::Again draws(draws_);
  const Tensors outputs = run(function_, inputs);
  draws.check();
  check_same(outputs, inputs);
  return outputs;
}

torch::autograd::variable_list Checkpoint::apply(torch::autograd::variable_list&& gradients) {
  if (torch::GradMode::is_enabled()) {
    refuse(
        "create_graph cannot go through it: leave the checkpoint out where gradients of gradients "
        "are needed");
  }
  if (versions_of(leaves_) != versions_) {
    refuse(
        "a parameter was changed after forward, and backward needs its old values: call "
        "backward() before the optimizer's step()");
  }
  Tensors saved;
  for (const auto& input : inputs_) saved.push_back(input.unpack());
  const Inputs inputs(saved);
  const OtherValues buffers(options_.buffers, buffers_);
  const Tensors outputs = run_again(inputs);
  Tensors roots, seeds;
  std::size_t next = 0;  // in gradients: those outputs have one that want it
  for (const torch::Tensor& output : outputs) {
    if (!wants_gradient(output)) continue;
    if (const torch::Tensor& seed = gradients[next++]; seed.defined()) {
      roots.push_back(output);
      seeds.push_back(seed);
    }
  }
  Tensors wanted;
  std::vector<std::size_t> places;  // of the wanted ones among the edges
  for (std::size_t edge = 0; edge < num_outputs(); ++edge) {
    if (!next_edge(edge).is_valid() || !task_should_compute_output(edge)) continue;
    wanted.push_back(edge < saved.size() ? inputs.leaves[edge] : leaves_[edge - saved.size()]);
    places.push_back(edge);
  }
  torch::autograd::variable_list results(num_outputs());
  if (roots.empty() || wanted.empty()) return results;
  const WithoutHooks without(leaves_);
  const Tensors found = torch::autograd::grad(roots, wanted, seeds, /*retain_graph=*/false,
                                              /*create_graph=*/false, /*allow_unused=*/true);
  for (std::size_t i = 0; i < places.size(); ++i) results[places[i]] = found[i];
  return results;
}

}  // namespace

std::vector<torch::Tensor> replica::checkpoint_lists(
    std::function<std::vector<torch::Tensor>(const std::vector<torch::Tensor>&)> function,
    const std::vector<torch::Tensor>& inputs, CheckpointOptions options) {
  if (!torch::GradMode::is_enabled()) return function(inputs);
  const std::shared_ptr<Checkpoint> node(
      new Checkpoint(std::move(function), std::move(options), inputs), torch::autograd::deleteNode);
  return Checkpoint::forward(node, inputs);
}

torch::Tensor replica::checkpoint_one(std::function<torch::Tensor(const torch::Tensor&)> function,
                                      const torch::Tensor& input, CheckpointOptions options) {
  const auto of_lists = [function = std::move(function)](const Tensors& inputs) {
    return Tensors{function(inputs.front())};
  };
  return replica::checkpoint_lists(of_lists, Tensors{input}, std::move(options)).front();
}

}  // namespace lockstep

// Shards whose batch norms share statistics: each layer needs the numbers of all shards before any of them can go on.
//
//   relay     every hosted shard has a thread of its own, of which one runs. At a batch norm it hands on to the next
//             shard. When all have come, their rows go to the other workers, and all go on
//   luggage   what a shard takes along when it hands on: the state of the random numbers, and its buffers
//   GPU       all shards queue on one stream, in the order in which they run. With several workers the host waits for
//             the rows of each layer, and sends them. With one worker they stay on the GPU. Nothing is captured as a
//             graph
//   gradients are kept by shard until all have run. Then each shard has a pass with its own, in order, so the sums are
//             those of any other Step
//   followers in a short batch some workers have no shard with samples. They cannot know which layers come. The leader
//             tells them, before each message
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/relay.h"
#include "plan/tree.h"
#include "torch/device/device.h"
#include "torch/device/generators.h"
#include "torch/replica/collectives.h"
#include "torch/replica/synced_norms.h"
#include "torch/replica/tensors.h"
#include "torch/step/arithmetic.h"
#include "torch/step/autocast_state.h"
#include "torch/step/host_runner.h"

namespace lockstep::steps {
namespace {

// Brings the rows of all shards of all workers to each worker.
//
// Threads:   one caller at a time.
// Blocking:  all calls, which are collective, at most the Comm's timeout.
// Failure:   PeerLost, Timeout, Mismatch.
// Ownership: borrows the generation.
class RowsOfShards {
 public:
  RowsOfShards(Generation& generation, bool everywhere)
      : generation_(generation), everywhere_(everywhere) {}

  // `own`: a row for each hosted shard. Returns a row for each shard of the job.
  replica::NormRows gather(const std::string& name, std::vector<replica::NormRow> own);

  // On a worker without samples: takes part in the others' messages, until they call end().
  void follow();
  void end() {
    if (!everywhere_) broadcast({});
  }

 private:
  // The next message: its name, and how many numbers a row has. The last one has none. The leader's counts: it hosts the
  // first shard, which has samples in every step.
  struct Next {
    std::array<char, 64> name{};
    std::int64_t width = 0;
  };
  Next broadcast(Next next) {
    generation_.control.broadcast({&next, sizeof(next), DType::kUInt8}, 0).wait();
    return next;
  }
  at::Tensor exchange(const std::string& name, const at::Tensor& rows);

  Generation& generation_;
  bool everywhere_;  // whether all workers have samples
};

// The first shard has samples, and so a row.
replica::NormRows RowsOfShards::gather(const std::string& name, std::vector<replica::NormRow> own) {
  at::NoGradGuard no_grad;
  const at::Tensor like = own.front().numbers;
  if (generation_.size() == 1) {
    replica::NormRows rows;
    for (const auto& row : own) rows.counts.push_back(row.count);
    rows.all = replica::stacked(own);
    return rows;
  }
  own.resize(static_cast<std::size_t>(
      plan::hosted_shards(0, generation_.size(), generation_.shards).size()));
  const at::Tensor rows = replica::packed(own);
  if (!everywhere_) {
    Next next;
    name.copy(next.name.data(), next.name.size() - 1);
    next.width = rows.size(1);
    broadcast(next);
  }
  return replica::unpacked(exchange(name, rows), like);
}

// The first workers may host one shard more, so a row of the others is empty.
at::Tensor RowsOfShards::exchange(const std::string& name, const at::Tensor& rows) {
  const CallName call(generation_.control, name);
  const at::Tensor all = replica::all_gather(generation_.control, rows);
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < generation_.size(); ++rank) {
    const int hosted = plan::hosted_shards(rank, generation_.size(), generation_.shards).size();
    parts.push_back(all[rank].slice(0, 0, hosted));
  }
  return at::cat(parts);
}

void RowsOfShards::follow() {
  const int most = plan::hosted_shards(0, generation_.size(), generation_.shards).size();
  for (;;) {
    const Next next = broadcast({});
    if (next.width == 0) return;
    exchange(next.name.data(), at::zeros({most, next.width}, at::kDouble));
  }
}

// What the shards that run at the same time share.
struct Together {
  base::Relay& relay;
  RowsOfShards& messages;
  const ShardWork& work;
  device::Generators generators;
  std::vector<replica::NormRow> rows;  // of each hosted shard, at the layer where all are
  replica::NormRows gathered;          // of all shards of the job
};

// One shard, on its thread: what it takes along, and its part in batch norms.
class ShardInStep : public replica::NormExchange {
 public:
  ShardInStep(Together& together, int number, int shard)
      : together_(together), number_(number), shard_(shard) {}

  replica::NormRows gather(const std::string& name, const replica::NormRow& row) override;
  std::int64_t count(const std::string& layer) override { return counts_[layer]++; }

 private:
  struct Luggage {
    std::vector<std::byte> buffers;
    std::vector<at::Tensor> buffers_of_gpu;
    int turns = 0;  // to draw random numbers; in forward, and when a checkpoint runs again
    std::vector<at::Tensor> random;  // the states of the generators, if it has a turn
  };
  Luggage put_down();
  void take_up(const Luggage& luggage);

  Together& together_;
  int number_;  // of the relay
  int shard_;
  std::map<std::string, std::int64_t> counts_;
};

ShardInStep::Luggage ShardInStep::put_down() {
  Luggage luggage;
  const ShardWork& work = together_.work;
  if (work.buffer_bytes.empty()) luggage.buffers = replica::pack(work.buffers);
  for (const at::Tensor& bytes : work.buffer_bytes) luggage.buffers_of_gpu.push_back(bytes.clone());
  luggage.random = together_.generators.states();
  luggage.turns = GeneratorTurn::put_down();
  return luggage;
}

void ShardInStep::take_up(const Luggage& luggage) {
  GeneratorTurn::take_up(luggage.turns);
  if (luggage.turns > 0) together_.generators.set(luggage.random);
  const ShardWork& work = together_.work;
  if (work.buffer_bytes.empty()) replica::unpack(luggage.buffers, work.buffers);
  for (std::size_t i = 0; i < work.buffer_bytes.size(); ++i)
    work.buffer_bytes[i].copy_(luggage.buffers_of_gpu[i]);
}

replica::NormRows ShardInStep::gather(const std::string& name, const replica::NormRow& row) {
  together_.rows[static_cast<std::size_t>(number_)] = row;
  const Luggage luggage = put_down();
  try {
    together_.relay.meet(number_, name, [&] {
      together_.gathered = together_.messages.gather(name, together_.rows);
    });
  } catch (...) {
    GeneratorTurn::take_up(luggage.turns);  // those who took the turns give them back
    throw;
  }
  take_up(luggage);
  replica::NormRows rows = together_.gathered;
  rows.own = shard_;
  return rows;
}

// All hosted shards at the same time.
class ShardsInStep : public HostRunner {
 public:
  explicit ShardsInStep(ShardWork work);

  void run(Turns& turns) override;
  // Waits for the update on a GPU: with the losses go the parities of what it wrote.
  std::optional<PhaseResult::Local> known() override {
    for (ModelStep* const model : work_.models) model->collect_with_parity();
    return HostRunner::known();
  }

 private:
  using Gradients = std::vector<torch::Tensor>;  // by input; undefined: there is none
  void run_together(std::vector<Turn>& turns, Turns& steps, std::vector<Gradients>& gradients);
  Gradients run_one(Turn& turn, Turns& steps);
  void pass_on(const Turn& turn, Gradients gradients);

  ShardWork work_;
  base::Relay relay_;
};

ShardsInStep::ShardsInStep(ShardWork work)
    : work_(std::move(work)), relay_(work_.generation->hosted.size()) {
  const device::SharedStream can_be_made(work_.models.front()->model().device());
  if (!work_.inputs.empty()) return;
  for (const ModelStep* const model : work_.models) {
    const auto tensors = model->model().trained();
    work_.inputs.insert(work_.inputs.end(), tensors.begin(), tensors.end());
  }
}

void ShardsInStep::run(Turns& steps) {
  std::vector<Turn> turns;
  turns.reserve(static_cast<std::size_t>(steps.hosted().size()));
  for (int shard = steps.hosted().begin; shard < steps.hosted().end; ++shard)
    turns.push_back(steps.take(shard, 0));
  std::vector<Gradients> gradients(turns.size());
  run_together(turns, steps, gradients);
  for (std::size_t i = 0; i < turns.size(); ++i) {
    steps.before_backward(turns[i]);
    if (turns[i].shard.batch.samples > 0) pass_on(turns[i], std::move(gradients[i]));
    steps.ended();
  }
}

void ShardsInStep::run_together(std::vector<Turn>& turns, Turns& steps,
                                std::vector<Gradients>& gradients) {
  RowsOfShards messages(*work_.generation, steps.everywhere());
  std::vector<std::string> names;  // of shards with samples, which come first
  for (const Turn& turn : turns) {
    if (turn.shard.batch.samples > 0) names.push_back(fmt::format("shard {}", turn.shard.index));
  }
  if (names.empty()) return messages.follow();
  const Device device = work_.models.front()->model().device();
  Together together{relay_,
                    messages,
                    work_,
                    device::Generators({torch::Device(device)}),
                    std::vector<replica::NormRow>(turns.size()),
                    {}};
  const at::ThreadLocalState state;
  const device::SharedStream stream(device);
  const auto autocast =
      AutocastState::of(torch::Device(device).type());  // what is on around the Step
  relay_.run(names, [&](int number) {
    at::init_num_threads();  // before any library below LibTorch uses its own number
    const at::ThreadLocalStateGuard as_caller(state);
    const device::SharedStream::Scope on_stream(stream);
    // Also with autocast in the loss: cast weights are kept until the shard has ended. Where LibTorch has one cache for all
    // threads, the end of one shard's forward would else let go what another one uses.
    const Autocast as_around = autocast.again();
    Turn& turn = turns[static_cast<std::size_t>(number)];
    ShardInStep shard(together, number, turn.shard.index);
    const replica::NormScope norms(shard);
    gradients[static_cast<std::size_t>(number)] = run_one(turn, steps);
  });
  messages.end();
}

ShardsInStep::Gradients ShardsInStep::run_one(Turn& turn, Turns& steps) {
  Desk desk(*this, turn.shard.index);
  turn.shard.reports = &desk;
  steps.before_forward();
  const torch::Tensor loss = seeded_loss(work_, turn);
  steps.forward_done(turn);
  Gradients gradients;
  say_where({"backward pass", turn.shard.step, turn.shard.index}, [&] {
    const torch::Tensor root = backward_root(loss, turn);
    gradients = torch::autograd::grad({root}, work_.inputs,
                                      {torch::full_like(root, turn.weight * turn.scale)},
                                      /*retain_graph=*/false, /*create_graph=*/false,
                                      /*allow_unused=*/true);
    put_loss(turn, loss.item<double>());
  });
  return gradients;
}

// A pass that begins with the parameters: each gets its gradient, as from a backward pass of the loss.
void ShardsInStep::pass_on(const Turn& turn, Gradients gradients) {
  std::vector<torch::Tensor> reached;
  std::vector<torch::Tensor> theirs;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    reached.push_back(work_.inputs[i]);
    theirs.push_back(std::move(gradients[i]));
  }
  for (ModelStep* const model : work_.models) model->await_pass(true);
  say_where({"backward pass", turn.shard.step, turn.shard.index},
            [&] { torch::autograd::backward(reached, theirs); });
  for (ModelStep* const model : work_.models) model->await_pass(false);
}

}  // namespace

std::unique_ptr<ShardRunner> make_shards_in_step(ShardWork work) {
  return std::make_unique<ShardsInStep>(std::move(work));
}

}  // namespace lockstep::steps

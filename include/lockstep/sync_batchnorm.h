// Batch normalisation over the samples of all workers.
//
//   auto net = std::make_shared<Net>();                          // with torch::nn::BatchNorm2d in it
//   lockstep::convert_sync_batchnorm(*net, world);
//   auto model = lockstep::data_parallel(net, world);
#pragma once

#include <lockstep/world.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <iosfwd>

namespace lockstep {

struct SyncBatchNormOptions {
  // How many consecutive shards share their statistics; in a drop-in loop, workers. 0: all.
  std::int64_t group = 0;
};

// Makes every torch::nn::BatchNorm1d, 2d and 3d and every SyncBatchNorm inside a module compute its
// statistics over the samples of all workers while it trains, also when workers have different
// numbers of samples, or none. The module keeps its layers and their names. In eval() nothing
// changes. Outputs, gradients and running statistics are those of one large batch, but for rounding.
// As with PyTorch's SyncBatchNorm, gradients of weight and bias are those of the worker's own
// samples, which data_parallel() then averages.
//
// A layer sends one message in forward and one in backward: 2 numbers per channel.
//
// In a Step or a Trainer the statistics are those of the global batch: all shards, on any number of
// workers, with the same bits. A worker then runs its shards at the same time, from layer to layer.
// So it needs the memory of all of them: activations and gradients. On a GPU it needs LibTorch 2, and
// nothing is captured as a CUDA graph.
//
// Threads:   one caller at a time, for everything that belongs to a world.
// Blocking:  the call is collective. So is each forward of a layer in training, and its backward:
//            every worker runs the same layers in the same order, and waits for the others, at most
//            the world's timeout. In a drop-in loop a worker without samples runs forward with an
//            empty batch, and backward(loss, 0).
// Failure:   BadInput for a layer that has neither weights nor running statistics, for one value per
//            channel over all workers, for a backward with create_graph, and for shards that run
//            different layers. LibTorch itself refuses a batch with one value per channel, also if
//            others have more. Mismatch if workers convert different layers, or come to different
//            ones: if one did not convert, is in eval(), runs layers in another order or another
//            number of times, or goes back through them in another order. It comes when such a worker
//            next meets the others: in a layer, backward() or a step. Where workers share no memory,
//            all must use the parameters behind a converted layer, or none may: else it is a
//            Mismatch, too. Unavailable in a Step on a GPU before LibTorch 2. PeerLost; Timeout, which
//            names the layer.
// Ownership: the world must outlive the module's last pass.
//
// Returns how many layers were converted. A second call for the same layer replaces the first. For
// a model of a Job, call it before batches().
std::size_t convert_sync_batchnorm(torch::nn::Module& module, World& world,
                                   const SyncBatchNormOptions& options = {});

// A batch norm for inputs of any number of dimensions, batch and channels first, as PyTorch's
// SyncBatchNorm:
//
//   norm = register_module("norm", lockstep::SyncBatchNorm(64));
//
// convert_sync_batchnorm() gives it its world, as it does for LibTorch's batch norms. In a checkpoint
// it is what a torch::nn::BatchNorm2d is. Unlike that, a worker may have one value per channel.
//
// Threads, Blocking, Ownership: as a converted layer.
// Failure:   as a converted layer; BadInput for a forward in training before the conversion.
class SyncBatchNormImpl
    : public torch::nn::NormImplBase<1, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& given) : NormImplBase(given) {}
  explicit SyncBatchNormImpl(std::int64_t num_features)
      : SyncBatchNormImpl(torch::nn::BatchNormOptions(num_features)) {}

  torch::Tensor forward(const torch::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const torch::Tensor& input) override;
};
TORCH_MODULE(SyncBatchNorm);

}  // namespace lockstep

// A training loop on one device, as a LibTorch user writes it. Beside it: train.cpp, on any number of workers with the same
// bits on each, and drop_in.cpp, which changes the fewest lines. The difference between them is the documentation.
#include <torch/torch.h>

#include <cstdio>

#include "net.h"

int main() {
  torch::manual_seed(0);
  Net model;
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  auto loader = torch::data::make_data_loader(Pictures().map(torch::data::transforms::Stack<>()),
                                              torch::data::DataLoaderOptions().batch_size(256));
  double last = 0;
  for (int epoch = 0; epoch < 5; ++epoch) {
    for (auto& batch : *loader) {
      auto loss = torch::nll_loss(model->forward(batch.data), batch.target);
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
      last = loss.item<double>();
    }
    std::printf("epoch %d: loss %.4f\n", epoch, last);
  }
  torch::save(model, "net.pt");
}

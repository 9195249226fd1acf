// A GAN in the drop-in loop: two models, two optimizers, two forward passes before one backward.
//
//   ./gan                         alone
//   lockstep run -n 4 -- ./gan    each worker with its own samples
#include <lockstep/lockstep.h>

#include <cmath>
#include <cstdio>

namespace nn = torch::nn;

nn::Sequential make_generator() {
  return nn::Sequential(nn::Linear(8, 64), nn::BatchNorm1d(64), nn::ReLU(), nn::Linear(64, 2));
}
nn::Sequential make_critic() {
  return nn::Sequential(nn::Linear(2, 64),
                        nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)),
                        nn::Linear(64, 1));
}

// Points near a circle of radius 2.
torch::Tensor real_points(std::int64_t count) {
  const auto angle = torch::rand({count, 1}) * 2 * M_PI;
  return 2 * torch::cat({angle.cos(), angle.sin()}, 1) + 0.05 * torch::randn({count, 2});
}

int main() {
  auto world = lockstep::join();
  torch::manual_seed(static_cast<std::uint64_t>(world.rank()));  // the leader's weights go to all
  auto generator = lockstep::data_parallel(make_generator(), world, {.name = "generator"});
  auto critic = lockstep::data_parallel(make_critic(), world, {.name = "critic"});
  lockstep::optim::Adam of_generator(generator, {.lr = 2e-3});
  lockstep::optim::Adam of_critic(critic, {.lr = 2e-3});
  const std::int64_t samples = 256 / world.size();

  for (int step = 1; step <= 600; ++step) {
    const auto made = generator->forward(torch::randn({samples, 8}));
    const auto of_real = critic->forward(real_points(samples));
    const auto of_made = critic->forward(made.detach());
    critic.zero_grad();
    (torch::softplus(-of_real) + torch::softplus(of_made)).mean().backward();
    of_critic.step();

    generator.zero_grad();
    {
      auto guard = critic.no_sync();  // its gradients of this pass are not used
      torch::softplus(-critic->forward(made)).mean().backward();
    }
    of_generator.step();
    critic.zero_grad();
    if (step % 200 != 0) continue;
    torch::NoGradGuard no_grad;
    const double radius = lockstep::mean(
        world, generator->forward(torch::randn({512, 8})).norm(2, 1).mean().item<double>());
    if (world.leader()) std::printf("step %d: radius %.2f\n", step, radius);
  }
  if (world.leader()) lockstep::save(generator, "net.safetensors");
}

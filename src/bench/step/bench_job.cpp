#include "bench/step/bench_job.h"

#include <lockstep/autocast.h>
#include <lockstep/errors.h>

namespace lockstep::bench {
namespace {

constexpr std::int64_t kClasses = 10;
constexpr std::int64_t kVocabulary = 65;  // letters
// GPT-2's 50,257 tokens, rounded up to a number with which matrix products are fast, as is usual.
constexpr std::int64_t kVocabularyOfGpt2 = 50304;

DataShape shape_of(const StepJob& job) {
  if (job.model == "gpt")
    return {{job.context}, job.gpt_size == "gpt2" ? kVocabularyOfGpt2 : kVocabulary, true};
  if (job.model == "cnn") return {{1, 28, 28}, kClasses, false};
  if (job.model == "resnet18") return {{3, 32, 32}, kClasses, false};
  return {{784}, kClasses, false};
}

Batch random_batch(const DataShape& shape, std::int64_t samples) {
  std::vector<std::int64_t> sizes = shape.sample;
  sizes.insert(sizes.begin(), samples);
  const auto whole = torch::TensorOptions(torch::kInt64);
  if (shape.is_text) {
    return {torch::randint(shape.classes, sizes, whole),
            torch::randint(shape.classes, sizes, whole), samples};
  }
  return {torch::randn(sizes), torch::randint(shape.classes, {samples}, whole), samples};
}

}  // namespace

StepJob parse_step_job(const std::vector<std::string>& words) {
  if (words.size() != 12) throw BadInput("bench-step is started by `lockstep bench step`");
  return {words[0],
          std::stoi(words[1]),
          words[2],
          std::stoll(words[3]),
          words[4],
          std::stod(words[5]),
          std::stoll(words[6]),
          words[7],
          words[8],
          words[9],
          std::stoll(words[10]),
          std::stoull(words[11])};
}

std::shared_ptr<models::Net> make_net(const StepJob& job, torch::Device device) {
  torch::manual_seed(0);
  auto net = models::make({job.model, job.gpt_size, 0.0, 0}, shape_of(job));
  net->to(device);
  // LibTorch's own optimizers have no masters.
  if (job.precision == "bf16-held" && job.system != "plain") hold_weights(*net, torch::kBFloat16);
  return net;
}

Batch make_batch(const StepJob& job, int rank, torch::Device device) {
  torch::manual_seed(static_cast<std::uint64_t>(rank) + 1);
  Batch batch = random_batch(shape_of(job), job.batch);
  batch.data = batch.data.to(device);
  batch.target = batch.target.to(device);
  return batch;
}

}  // namespace lockstep::bench

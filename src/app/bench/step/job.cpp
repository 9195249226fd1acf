#include "app/bench/step/job.h"

#include <lockstep/errors.h>

namespace lockstep::bench {
namespace {

constexpr std::int64_t kClasses = 10;
constexpr std::int64_t kVocabulary = 65;
constexpr std::int64_t kContext = 128;

DataShape shape_of(const std::string& model) {
  if (model == "gpt") return {{kContext}, kVocabulary, true};
  if (model == "cnn") return {{1, 28, 28}, kClasses, false};
  if (model == "resnet18") return {{3, 32, 32}, kClasses, false};
  return {{784}, kClasses, false};
}

}  // namespace

StepJob parse_step_job(const std::vector<std::string>& words) {
  if (words.size() != 7) throw BadInput("bench-step is started by `lockstep bench step`");
  return {words[0],
          std::stoi(words[1]),
          words[2],
          std::stoll(words[3]),
          words[4],
          std::stod(words[5]),
          std::stoll(words[6])};
}

std::shared_ptr<models::Net> make_net(const StepJob& job) {
  torch::manual_seed(0);
  return models::make({job.model, "tiny", 0.0, 0}, shape_of(job.model));
}

Batch make_batch(const StepJob& job, int rank) {
  torch::manual_seed(static_cast<std::uint64_t>(rank) + 1);
  const DataShape shape = shape_of(job.model);
  std::vector<std::int64_t> sizes = shape.sample;
  sizes.insert(sizes.begin(), job.batch);
  const auto whole = torch::TensorOptions(torch::kInt64);
  if (shape.is_text) {
    return {torch::randint(shape.classes, sizes, whole),
            torch::randint(shape.classes, sizes, whole), job.batch};
  }
  return {torch::randn(sizes), torch::randint(shape.classes, {job.batch}, whole), job.batch};
}

}  // namespace lockstep::bench

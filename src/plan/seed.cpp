#include "plan/seed.h"

#include "base/hash.h"

namespace lockstep::plan {
namespace {

constexpr std::uint64_t kOfPhases = 0x7068617365732121ULL;
constexpr std::uint64_t kOfSamples = 0x73616d706c657321ULL;
constexpr std::uint64_t kOfDraws = 0x6472617773212121ULL;
constexpr std::uint64_t kOfDrawnSamples = 0x647261776e212121ULL;
constexpr std::uint64_t kOfStreams = 0x73747265616d7321ULL;

// Mixes between any two inputs, so that (a, b) and (b, a) give different seeds.
std::uint64_t mixed(std::uint64_t job_seed, std::int64_t a, std::int64_t b) {
  const std::uint64_t of_job = base::mix64(job_seed);
  const std::uint64_t of_a = base::mix64(of_job ^ static_cast<std::uint64_t>(a));
  return base::mix64(of_a ^ static_cast<std::uint64_t>(b));
}

}  // namespace

std::uint32_t shard_seed(std::uint64_t job_seed, std::int64_t step, int shard, int phase) {
  if (phase > 0) {
    const std::uint64_t of_phase = base::mix64(static_cast<std::uint64_t>(phase) ^ kOfPhases);
    job_seed = base::mix64(job_seed) ^ of_phase;
  }
  return static_cast<std::uint32_t>(mixed(job_seed, step, shard) >> 32);
}

std::uint64_t sample_seed(std::uint64_t job_seed, std::int64_t epoch, std::int64_t index) {
  return mixed(base::mix64(job_seed) ^ kOfSamples, epoch, index);
}

std::uint64_t draw_number(std::uint64_t job_seed, std::int64_t epoch, std::int64_t position) {
  return mixed(base::mix64(job_seed) ^ kOfDraws, epoch, position);
}

std::uint64_t drawn_sample_seed(std::uint64_t job_seed, std::int64_t epoch, std::int64_t position) {
  return mixed(base::mix64(job_seed) ^ kOfDrawnSamples, epoch, position);
}

std::uint64_t stream_seed(std::uint64_t job_seed, std::int64_t epoch, int shard,
                          std::int64_t pass) {
  return mixed(mixed(base::mix64(job_seed) ^ kOfStreams, epoch, shard), pass, 0);
}

}  // namespace lockstep::plan

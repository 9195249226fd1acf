#include "bench/allreduce/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "bench/measure/time_lines.h"

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kAlignment = 64;
constexpr double kBlockSeconds = 50e-6;
constexpr std::size_t kMostBlock = 64;
constexpr std::size_t kBlockBytes = std::size_t{1} << 20;  // blocks of several stay below
constexpr int kLeastSamples = 3;
constexpr int kMostSamples = 1000;
constexpr int kWarmUp = 3;

// Prime, so that a slice at a wrong offset is not taken for the right one.
constexpr std::size_t kPeriod = 4099;
constexpr std::uint64_t kValues = 1021;

std::uint64_t value(std::uint64_t place, std::uint64_t rank) {
  return (place * place * 31 + place * 7 + rank * 131) % kValues;
}

// Calls body(begin, count, place) for stretches of data that do not cross the pattern's end.
template <typename Body>
void for_stretches(std::size_t count, std::size_t shift, const Body& body) {
  std::size_t place = shift % kPeriod;
  for (std::size_t begin = 0; begin < count;) {
    const std::size_t length = std::min(kPeriod - place, count - begin);
    if (!body(begin, length, place)) return;
    begin += length;
    place = 0;
  }
}

std::size_t stride_of(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t most_block(std::size_t bytes) {
  return std::clamp(kBlockBytes / stride_of(bytes), std::size_t{1}, kMostBlock);
}

double seconds_since(Clock::time_point begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

// One size of one system.
class Series {
 public:
  Series(Reducer& reducer, const Pattern& pattern, float* memory, std::size_t bytes)
      : reducer_(reducer),
        pattern_(pattern),
        memory_(memory),
        count_(bytes / sizeof(float)),
        stride_(stride_of(bytes) / sizeof(float)) {}

  // The seconds that one all-reduce of the block took on this worker.
  double sample() {
    const std::size_t shift = shift_++;
    pattern_.fill(memory_, stride_ * block_, shift);
    reducer_.barrier();
    const auto begun = Clock::now();
    for (std::size_t i = 0; i < block_; ++i) reducer_.all_reduce(memory_ + i * stride_, count_);
    const double took = seconds_since(begun) / static_cast<double>(block_);
    if (reducer_.waits()) {
      compare(shift);
    } else {
      reducer_.barrier();  // a slower worker may still read the memory that is filled next
    }
    return took;
  }

  // Finds out how long an all-reduce takes. All workers get the same numbers.
  void prepare(const MeasureOptions& options) {
    double times[2] = {0, 0};
    for (int i = 0; i < kWarmUp; ++i) times[0] = sample();
    reducer_.max({times, 1});
    const double wanted = std::ceil(kBlockSeconds / std::max(times[0], 1e-9));
    const auto most = static_cast<double>(most_block(count_ * sizeof(float)));
    block_ = static_cast<std::size_t>(std::clamp(wanted, 1.0, most));
    const auto begun = Clock::now();
    for (int i = 0; i < kWarmUp; ++i) sample();
    times[1] = seconds_since(begun) / kWarmUp;
    reducer_.max(times);
    const double fitting = std::min(options.seconds / std::max(times[1], 1e-9), 1e6);
    samples_ = options.samples > 0
                   ? options.samples
                   : std::clamp(static_cast<int>(fitting), kLeastSamples, kMostSamples);
  }

  std::vector<double> run() {
    std::vector<double> times(static_cast<std::size_t>(samples_));
    for (double& time : times) time = sample();
    reducer_.max(times);
    return times;
  }

  std::size_t block() const { return block_; }

 private:
  void compare(std::size_t shift) const {
    for (std::size_t i = 0; i < block_; ++i) {
      const float* data = memory_ + i * stride_;
      const std::size_t wrong = pattern_.first_wrong(data, count_, shift + i * stride_);
      if (wrong < count_) {
        throw std::runtime_error("wrong sum: element " + std::to_string(wrong) + " of " +
                                 std::to_string(count_) + " is " + std::to_string(data[wrong]));
      }
    }
  }

  Reducer& reducer_;
  const Pattern& pattern_;
  float* memory_;
  std::size_t count_;
  std::size_t stride_;
  std::size_t block_ = 1;
  std::size_t shift_ = 0;
  int samples_ = kLeastSamples;
};

void print(std::size_t bytes, std::size_t block, std::vector<double> times) {
  for (double& time : times) time *= 1e6;
  const std::string every =
      "\"bytes\":" + std::to_string(bytes) + ",\"block\":" + std::to_string(block);
  for (const std::string& line :
       lines_of_times({every, "", "us", std::chars_format::general}, times)) {
    std::printf("%s\n", line.c_str());
  }
  std::fflush(stdout);
}

}  // namespace

Pattern::Pattern(int rank, int size) : own_(kPeriod), sum_(kPeriod, 0.0F) {
  for (std::size_t place = 0; place < kPeriod; ++place) {
    own_[place] = static_cast<float>(value(place, static_cast<std::uint64_t>(rank)));
    std::uint64_t sum = 0;
    for (int r = 0; r < size; ++r) sum += value(place, static_cast<std::uint64_t>(r));
    sum_[place] = static_cast<float>(sum);
  }
}

void Pattern::fill(float* data, std::size_t count, std::size_t shift) const {
  for_stretches(count, shift, [&](std::size_t begin, std::size_t length, std::size_t place) {
    std::memcpy(data + begin, own_.data() + place, length * sizeof(float));
    return true;
  });
}

std::size_t Pattern::first_wrong(const float* data, std::size_t count, std::size_t shift) const {
  std::size_t wrong = count;
  for_stretches(count, shift, [&](std::size_t begin, std::size_t length, std::size_t place) {
    const float* expected = sum_.data() + place;
    if (std::memcmp(data + begin, expected, length * sizeof(float)) == 0) return true;
    const float* other = std::mismatch(expected, expected + length, data + begin).first;
    wrong = begin + static_cast<std::size_t>(other - expected);
    return false;
  });
  return wrong;
}

MeasureOptions parse_measure_options(std::span<const std::string> words) {
  if (words.size() < 3) throw std::invalid_argument("expected SECONDS SAMPLES BYTES…");
  MeasureOptions options;
  options.seconds = std::stod(words[0]);
  options.samples = std::stoi(words[1]);
  for (const std::string& word : words.subspan(2)) options.sizes.push_back(std::stoull(word));
  return options;
}

std::vector<std::string> measure_words(const MeasureOptions& options) {
  std::vector<std::string> words = {std::to_string(options.seconds),
                                    std::to_string(options.samples)};
  for (const std::size_t bytes : options.sizes) words.push_back(std::to_string(bytes));
  return words;
}

void measure(Reducer& reducer, const MeasureOptions& options) {
  std::size_t bytes = 0;
  for (const std::size_t size : options.sizes)
    bytes = std::max(bytes, most_block(size) * stride_of(size));
  float* memory = reducer.memory(bytes);
  const Pattern pattern(reducer.rank(), reducer.size());
  const bool prints = reducer.rank() == 0;
  for (const std::size_t size : options.sizes) {
    Series series(reducer, pattern, memory, size);
    series.prepare(options);
    const std::vector<double> times = series.run();
    if (prints) print(size, series.block(), times);
  }
}

}  // namespace lockstep::bench

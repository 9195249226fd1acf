// How an all-reduce is measured: the same way for every system.
//
//   sample   all workers leave a barrier. Then a block of all-reduces is timed, one right after the
//            other, each on its own memory. The mean of the slowest worker counts
//   block    one all-reduce, or as many small ones as take about 50 µs, so that neither the clock
//            nor the time to leave the barrier is measured
//   inputs   integers that change with every sample, so small that every sum is exact. Every
//            element of every result is compared, outside the measured time
//
// It needs only the standard library, because the programs of the peers are built by their own
// compiler wrappers.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace lockstep::bench {

// One worker of a system that can reduce.
//
// Threads:   one caller at a time.
// Blocking:  collectives wait for the other workers, as long as the system does.
// Failure:   what the system throws.
// Ownership: owns its memory and its connections.
class Reducer {
 public:
  virtual ~Reducer() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // The memory in which the system reduces fastest: at least so many bytes, aligned to 64.
  // Collective; called once.
  virtual float* memory(std::size_t bytes) = 0;

  virtual void barrier() = 0;
  virtual void all_reduce(float* data, std::size_t count) = 0;

  // Replaces each value by the largest over all workers.
  virtual void max(std::span<double> values) = 0;

  // False for a limit: nobody waits for anybody, so the sums are not to be compared.
  virtual bool waits() const { return true; }
};

struct MeasureOptions {
  std::vector<std::size_t> sizes;  // bytes, multiples of 4
  double seconds = 0.1;            // time for the samples of one size, about
  int samples = 0;                 // of one size; 0: as many as `seconds` allows
};

// Reads the arguments SECONDS SAMPLES BYTES… of the programs. Throws std::invalid_argument for
// others.
MeasureOptions parse_measure_options(std::span<const std::string> words);
std::vector<std::string> measure_words(const MeasureOptions& options);

// Measures every size. Rank 0 prints a line for each size, or several if there are many samples,
// such as {"bytes":1024,"block":12,"us":[4.1,4.0]}. Collective. Throws std::runtime_error for a
// wrong sum.
void measure(Reducer& reducer, const MeasureOptions& options);

// The inputs of a sample. They are public so that tests can use them.
class Pattern {
 public:
  Pattern(int rank, int size);

  // Fills in this worker's numbers, from element `shift` of the pattern on.
  void fill(float* data, std::size_t count, std::size_t shift) const;

  // The first element that is not the sum over all workers; `count` if all are right.
  std::size_t first_wrong(const float* data, std::size_t count, std::size_t shift) const;

 private:
  std::vector<float> own_;
  std::vector<float> sum_;
};

}  // namespace lockstep::bench

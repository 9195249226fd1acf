// How an all-reduce is measured: the same way for every system.
//
//   sample   all workers leave a barrier; a block of all-reduces is timed, back to back, each on memory
//            of its own; the slowest worker's mean counts
//   block    one all-reduce, or as many small ones as take about 50 µs, so that neither the clock nor
//            the way out of the barrier is measured
//   inputs   whole numbers that change with every sample, small enough for every sum to be exact.
//            Every element of every result is compared, outside of the time
//
// Needs nothing but the standard library: the peers' programs are built by their own compiler wrappers.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace lockstep::bench {

// One worker's side of a system that can reduce.
//
// Threads:   one caller at a time.
// Blocking:  collectives wait for the other workers, as long as the system does.
// Failure:   whatever the system throws.
// Ownership: owns its memory and its connections.
class Reducer {
 public:
  virtual ~Reducer() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Memory that it reduces best, at least so many bytes, 64-byte aligned. Collective; asked for once.
  virtual float* memory(std::size_t bytes) = 0;

  virtual void barrier() = 0;
  virtual void all_reduce(float* data, std::size_t count) = 0;

  // The largest over all workers, for each value.
  virtual void max(std::span<double> values) = 0;

  // False for a limit, which adds nobody's numbers but its own.
  virtual bool adds_everyones() const { return true; }
};

struct MeasureOptions {
  std::vector<std::size_t> sizes;  // bytes, multiples of 4
  double seconds = 0.1;            // that samples of one size take, about
  int samples = 0;                 // of one size; 0: as `seconds` allows
};

// The words SECONDS SAMPLES BYTES…, as the programs take them. std::invalid_argument for others.
MeasureOptions parse_measure_options(std::span<const std::string> words);
std::vector<std::string> measure_words(const MeasureOptions& options);

// Measures every size. Rank 0 prints a line for each, or several for many samples, such as
// {"bytes":1024,"block":12,"us":[4.1,4.0]}. Collective. std::runtime_error for a wrong sum.
void measure(Reducer& reducer, const MeasureOptions& options);

// What a sample is made of; with these, tests can look at it.
class Pattern {
 public:
  Pattern(int rank, int size);

  // This worker's numbers from place `shift` of the pattern on.
  void fill(float* data, std::size_t count, std::size_t shift) const;

  // The first element that is not the sum over all workers; `count` when all are.
  std::size_t first_wrong(const float* data, std::size_t count, std::size_t shift) const;

 private:
  std::vector<float> own_;
  std::vector<float> sum_;
};

}  // namespace lockstep::bench

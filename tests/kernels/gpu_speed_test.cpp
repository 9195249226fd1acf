// The optimizers' kernels on a real GPU, beside a copy of as many bytes.
#include <gtest/gtest.h>
#include <lockstep/codec.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "flat/cuda/handles.h"
#include "flat/device_codec.h"
#include "flat/device_tables.h"
#include "flat/update_loops.h"
#include "plan/buckets.h"
#include "tests/kernels/needs_a_gpu.h"
#include "tests/support/elements.h"

namespace lockstep::testing {
namespace {

using cuda::DeviceArray;

// The parameters of a GPT of 124 million.
plan::Layout gpt_layout(DType dtype) {
  std::vector<plan::Parameter> all{{"tokens", dtype, 50'257 * 768}, {"places", dtype, 1'024 * 768}};
  const auto add = [&](const std::string& name, std::size_t count) {
    all.push_back({name, dtype, count});
  };
  for (int i = 0; i < 12; ++i) {
    const std::string block = std::to_string(i);
    add(block + ".norm1.weight", 768);
    add(block + ".norm1.bias", 768);
    add(block + ".attend.weight", 768 * 2'304);
    add(block + ".attend.bias", 2'304);
    add(block + ".project.weight", 768 * 768);
    add(block + ".project.bias", 768);
    add(block + ".norm2.weight", 768);
    add(block + ".norm2.bias", 768);
    add(block + ".widen.weight", 768 * 3'072);
    add(block + ".widen.bias", 3'072);
    add(block + ".narrow.weight", 3'072 * 768);
    add(block + ".narrow.bias", 768);
  }
  add("norm.weight", 768);
  add("norm.bias", 768);
  return plan::Layout(all);
}

// Bytes per second of the median of several rounds, after one that is not counted.
double speed_of(cudaStream_t stream, double bytes, const std::function<void()>& queue) {
  constexpr int kRounds = 11;
  constexpr int kTimes = 5;
  const auto begin = cuda::make_event(cuda::Timing::kYes);
  const auto end = cuda::make_event(cuda::Timing::kYes);
  std::vector<float> took;
  for (int round = 0; round <= kRounds; ++round) {
    cuda::check(cudaEventRecord(begin.get(), stream), "cudaEventRecord");
    for (int i = 0; i < kTimes; ++i) queue();
    cuda::check(cudaEventRecord(end.get(), stream), "cudaEventRecord");
    cuda::check(cudaDeviceSynchronize(), "a kernel");
    float milliseconds = 0;
    cuda::check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()),
                "cudaEventElapsedTime");
    if (round > 0) took.push_back(milliseconds);
  }
  std::nth_element(took.begin(), took.begin() + kRounds / 2, took.end());
  return bytes * kTimes / (took[kRounds / 2] * 1e-3);
}

// Memory with values as training has them: zeros take other ways through a division.
DeviceArray<std::byte> filled(std::size_t bytes, DType dtype) {
  constexpr std::size_t kPattern = std::size_t{1} << 20;
  std::vector<std::byte> pattern(kPattern * size_of(dtype));
  const auto values = rough_elements<float>(kPattern, 5);
  for (std::size_t i = 0; i < kPattern; ++i) {
    const float value = std::fabs(values[i]) + 1e-3F;
    const BFloat16 half(value);
    std::byte* const at = pattern.data() + i * size_of(dtype);
    std::memcpy(at, dtype == DType::kFloat32 ? static_cast<const void*>(&value) : &half,
                size_of(dtype));
  }
  DeviceArray<std::byte> memory(bytes);
  for (std::size_t done = 0; done < bytes; done += pattern.size()) {
    const std::size_t part = std::min(pattern.size(), bytes - done);
    cuda::check(cudaMemcpy(memory.data() + done, pattern.data(), part, cudaMemcpyDefault),
                "cudaMemcpy");
  }
  return memory;
}

// A model in the device's memory.
class Speed {
 public:
  explicit Speed(DType dtype, bool masters)
      : layout_(gpt_layout(dtype)), dtype_(dtype), kept_(masters ? DType::kFloat32 : dtype) {
    const std::size_t wide = masters ? tables_.wide_bytes() : layout_.bytes();
    for (DeviceArray<std::byte>* const memory : {&model_.parameters, &model_.gradients})
      *memory = filled(layout_.bytes(), dtype);
    for (DeviceArray<std::byte>* const memory : {&model_.masters, &model_.means, &model_.variances})
      *memory = filled(wide, kept_);
    std::vector<const void*> entries;
    for (const plan::Entry& entry : layout_.entries())
      entries.push_back(model_.gradients.data() + entry.offset);
    entries_ = DeviceArray<const void*>(entries);
    const flat::AdamStep step{1e-5, 0.9, 0.999, 1e-8, 0.1, true, 10};
    numbers_ = DeviceArray<flat::element::AdamNumbers<double>>(
        std::vector{flat::element::numbers_of(step)});
    const std::vector<unsigned long long> zeros(tables_.chunks().back().piece + 1);
    for (auto& words : words_) words = DeviceArray<unsigned long long>(zeros);
  }

  flat::DeviceRange range() const { return {device_tables_.view(), tables_.all(), dtype_}; }
  flat::UpdateTask task() const {
    flat::UpdateTask task;
    task.range = range();
    task.numbers = numbers_.data();
    task.parameters = model_.parameters.data();
    if (kept_ != dtype_) task.masters = reinterpret_cast<float*>(model_.masters.data());
    task.wide_states = kept_ != dtype_;
    task.states[0] = model_.means.data();
    task.states[1] = model_.variances.data();
    task.gradients = {dtype_, model_.gradients.data(), nullptr};
    return task;
  }
  flat::UpdateTask loose_task() const {
    flat::UpdateTask loose = task();
    loose.gradients = {dtype_, nullptr, entries_.data()};
    return loose;
  }
  flat::UpdateTask watched_task() const {
    flat::UpdateTask watched = loose_task();
    watched.watched = {words_[0].data(), words_[1].data(), words_[2].data()};
    return watched;
  }
  // Kept values and states both ways, gradients read, and parameters written beside masters.
  double update_bytes(std::size_t states = 2) const {
    const std::size_t kept = size_of(kept_) * 2 * (1 + states) + size_of(dtype_);
    const std::size_t each = kept + (kept_ != dtype_ ? size_of(dtype_) : 0);
    return static_cast<double>(layout_.elements()) * static_cast<double>(each);
  }
  // Of another rule, for float32.
  template <typename Step>
  double rule_speed(const Step& step) {
    const auto [task, states] = task_of(step);
    return speed_of(stream_.get(), update_bytes(states),
                    [&, &queued = task] { flat::queue_update(queued, stream_.get()); });
  }
  // With the passes that find the trusts, and what they read.
  double lars_speed(const flat::LarsStep& step) {
    auto [task, states] = task_of(step);
    task.trusts = trusts_.trusts();
    const double read = 2.0 * static_cast<double>(layout_.bytes());
    return speed_of(stream_.get(), read + update_bytes(states), [&, &queued = task] {
      flat::queue_measure({range(), queued.gradients, false, norms_.row(Norms::kGradients)},
                          stream_.get());
      flat::queue_clip(norms_.task(0), stream_.get());
      find_trusts(Norms::kGradients, Norms::kWeights);
      flat::queue_trusts(trusts_.trust_task(Norms::kGradients, nullptr), stream_.get());
      flat::queue_update(queued, stream_.get());
    });
  }
  double lamb_speed(const flat::LambStep& step) {
    auto [task, states] = task_of(step);
    task.trusts = trusts_.trusts();
    const double read = 5.0 * static_cast<double>(layout_.bytes());
    return speed_of(stream_.get(), read + update_bytes(states), [&, &queued = task] {
      flat::queue_changes({queued, norms_.row(Norms::kChanges)}, stream_.get());
      flat::queue_clip(norms_.task(0, 1, Norms::kChanges), stream_.get());
      find_trusts(Norms::kWeights, Norms::kChanges);
      flat::queue_trusts(trusts_.trust_task(Norms::kChanges, nullptr), stream_.get());
      flat::queue_update(queued, stream_.get());
    });
  }
  double update_speed(const flat::UpdateTask& task) {
    return speed_of(stream_.get(), update_bytes(),
                    [&] { flat::queue_update(task, stream_.get()); });
  }
  double bucket_speed() {
    flat::UpdateTask part = task();
    const auto buckets = plan::plan_buckets(layout_);
    return speed_of(stream_.get(), update_bytes(), [&] {
      for (const plan::Bucket& bucket : buckets) {
        part.range.chunks = tables_.of_entries(bucket.first_entry, bucket.entries);
        flat::queue_update(part, stream_.get());
      }
    });
  }
  double copy_speed() {
    const std::size_t bytes = layout_.bytes();
    return speed_of(stream_.get(), 2.0 * static_cast<double>(bytes), [&] {
      cuda::check(cudaMemcpyAsync(model_.variances.data(), model_.means.data(), bytes,
                                  cudaMemcpyDefault, stream_.get()),
                  "cudaMemcpyAsync");
    });
  }
  double norm_speed() {
    const flat::ClipMemory clip(layout_.blocks());
    return speed_of(stream_.get(), static_cast<double>(layout_.bytes()), [&] {
      flat::queue_measure(
          {range(), task().gradients, false, clip.row(flat::ClipMemory::kGradients)},
          stream_.get());
      flat::queue_clip(clip.task(1), stream_.get());
    });
  }
  double gather_speed() {
    return speed_of(stream_.get(), 2.0 * static_cast<double>(layout_.bytes()), [&] {
      flat::queue_gather({range(), entries_.data(), model_.means.data(), dtype_, false},
                         stream_.get());
    });
  }

 private:
  using Norms = flat::ClipMemory;

  template <typename Step>
  std::pair<flat::UpdateTask, std::size_t> task_of(const Step& step) const {
    flat::UpdateTask other = task();
    other.rule = flat::rule_of(step);
    const auto numbers = flat::element::numbers_of(step);
    other.numbers = nullptr;
    std::memcpy(other.few, &numbers, sizeof numbers);
    std::size_t states = 0;
    for (std::size_t i = 0; i < flat::kMostStates; ++i) {
      const DeviceArray<std::byte>* const memories[] = {&model_.means, &model_.variances,
                                                        &model_.masters};
      other.states[i] = step.uses(i) ? memories[i]->data() : nullptr;
      if (step.uses(i)) ++states;
    }
    return {other, states};
  }
  void find_trusts(Norms::Row first, Norms::Row last) {
    flat::queue_weights({range(), model_.parameters.data(), norms_.row(Norms::kWeights)},
                        stream_.get());
    flat::queue_entry_norms(trusts_.norms_task(device_tables_.view(), norms_, first, last),
                            stream_.get());
  }

  struct Model {
    DeviceArray<std::byte> parameters, gradients, masters, means, variances;
  };

  plan::Layout layout_;
  DType dtype_;
  DType kept_;
  flat::ChunkTables tables_{layout_, plan::plan_pieces(layout_, 1)};
  flat::DeviceTables device_tables_{tables_};
  Model model_;
  DeviceArray<const void*> entries_;
  DeviceArray<flat::element::AdamNumbers<double>> numbers_;
  std::array<DeviceArray<unsigned long long>, 3> words_;
  Norms norms_{layout_.blocks()};
  flat::EntryMemory trusts_{std::vector<flat::element::Trust>(layout_.entries().size())};
  cuda::Stream stream_ = cuda::make_stream();
};

void print(const char* what, double speed, double copy) {
  std::printf("  %-34s %7.0f GB/s  %5.1f %% of a copy\n", what, speed * 1e-9, 100 * speed / copy);
  std::fflush(stdout);
}

TEST(GpuSpeed, AdamWGoesAtTheSpeedOfMemory) {
  NEEDS_A_GPU();
  Speed speed(DType::kFloat32, false);
  const double flat = speed.update_speed(speed.task());
  const double loose = speed.update_speed(speed.loose_task());
  const double buckets = speed.bucket_speed();
  const double copy = speed.copy_speed();
  print("copy", copy, copy);
  print("AdamW", flat, copy);
  print("AdamW, gradients left in place", loose, copy);
  print("AdamW, bucket by bucket", buckets, copy);
  const double watched = speed.update_speed(speed.watched_task());
  print("AdamW, watched", watched, copy);
  print("norm", speed.norm_speed(), copy);
  print("gathering", speed.gather_speed(), copy);
  EXPECT_GT(flat, 0.8 * copy);
  EXPECT_GT(loose, 0.8 * copy);
  EXPECT_GT(watched, 0.8 * copy);
  Speed half(DType::kBFloat16, false);
  print("AdamW, bfloat16", half.update_speed(half.task()), copy);
  Speed mixed(DType::kBFloat16, true);
  print("AdamW, bfloat16 and masters", mixed.update_speed(mixed.task()), copy);
  const double mixed_with_parity = mixed.update_speed(mixed.watched_task());
  print("the same, watched", mixed_with_parity, copy);
  EXPECT_GT(mixed_with_parity, 0.8 * copy);
}

// Relative to the bytes that it moves, no rule is slower than AdamW. Those that find norms by layer
// first are some percent slower.
TEST(GpuSpeed, OtherRulesGoAtTheSpeedOfMemory) {
  NEEDS_A_GPU();
  Speed speed(DType::kFloat32, false);
  const double copy = speed.copy_speed();
  const double adamw = speed.update_speed(speed.task());
  print("copy", copy, copy);
  print("AdamW", adamw, copy);
  const auto expect = [&](const char* what, double found, double of_adamw = 0.95) {
    print(what, found, copy);
    EXPECT_GT(found, of_adamw * adamw) << what;
  };
  expect("SGD", speed.rule_speed(flat::SgdStep{1e-5, 0, 0, 1e-4}));
  expect("SGD, momentum", speed.rule_speed(flat::SgdStep{1e-5, 0.9, 0, 1e-4}));
  expect("Adam, amsgrad",
         speed.rule_speed(flat::AdamStep{1e-5, 0.9, 0.999, 1e-8, 0, false, 10, true}));
  expect("RMSprop", speed.rule_speed(flat::RmsPropStep{1e-5, 0.99, 1e-8}));
  expect("RMSprop, centered, momentum",
         speed.rule_speed(flat::RmsPropStep{1e-5, 0.99, 1e-8, 0, 0.9, true}));
  expect("Adagrad", speed.rule_speed(flat::AdagradStep{1e-5, 0, 0, 0, 1e-10, 10}));
  expect("LARS, with its norms", speed.lars_speed(flat::LarsStep{1e-5, 0.9, 0, 1e-4}), 0.9);
  expect("LAMB, with its norms", speed.lamb_speed(flat::LambStep{1e-5, 0.9, 0.999, 1e-6, 0.01, 10}),
         0.9);
}

// A codec with a model in the device's memory.
class CodecSpeed {
 public:
  explicit CodecSpeed(const std::string& words)
      : feedback_(codec::parse(words)->has_error_feedback()),
        format_(dynamic_cast<const flat::KnownToDevices&>(*codec::parse(words)).on_device()),
        blocks_(flat::codec_blocks(layout_, format_)),
        table_(blocks_),
        encoded_bytes_(blocks_.back().at + format_.bytes(blocks_.back().count)),
        encoded_(encoded_bytes_) {}

  // Gradients read; with feedback what was lost, too, both ways; the encoded bytes written.
  double encode_bytes() const { return flat() * (feedback_ ? 3 : 1) + encoded(); }
  double encode_speed() {
    return speed_of(stream_.get(), encode_bytes(), [&] {
      flat::queue_encode({range(), format_.kind, gradients_.data(), 0.25F,
                          feedback_ ? lost_.data() : nullptr, encoded_.data()},
                         stream_.get());
    });
  }
  double decode_bytes() const { return flat() + encoded(); }
  double decode_speed() {
    return speed_of(stream_.get(), decode_bytes(), [&] {
      flat::queue_decode({range(), format_.kind, encoded_.data(), gradients_.data()},
                         stream_.get());
    });
  }
  // Of both together.
  double speed() {
    const double seconds = encode_bytes() / encode_speed() + decode_bytes() / decode_speed();
    return (encode_bytes() + decode_bytes()) / seconds;
  }

 private:
  double flat() const { return static_cast<double>(layout_.bytes()); }
  double encoded() const { return static_cast<double>(encoded_bytes_); }
  flat::CodecRange range() const { return {table_.data(), {0, blocks_.size()}, 0}; }

  plan::Layout layout_ = gpt_layout(DType::kFloat32);
  bool feedback_;
  flat::DeviceFormat format_;
  std::vector<flat::CodecBlock> blocks_;
  DeviceArray<flat::CodecBlock> table_;
  std::size_t encoded_bytes_;
  DeviceArray<std::byte> encoded_;
  DeviceArray<std::byte> gradients_ = filled(layout_.bytes(), DType::kFloat32);
  DeviceArray<std::byte> lost_{layout_.bytes()};
  cuda::Stream stream_ = cuda::make_stream();
};

TEST(GpuSpeed, CodecsGoAtTheSpeedOfMemory) {
  NEEDS_A_GPU();
  const double copy = Speed(DType::kFloat32, false).copy_speed();
  print("copy", copy, copy);
  for (const char* const words :
       {"bf16", "fp16", "int8:plain", "int8", "one-bit", "top-k:0.01", "top-k:0.25"}) {
    CodecSpeed codec(words);
    const std::string name = words;
    print((name + ", encode").c_str(), codec.encode_speed(), copy);
    print((name + ", decode").c_str(), codec.decode_speed(), copy);
    if (name.ends_with("16") || name.starts_with("int8")) {
      EXPECT_GT(codec.speed(), 0.7 * copy) << words;
    }
  }
}

}  // namespace
}  // namespace lockstep::testing

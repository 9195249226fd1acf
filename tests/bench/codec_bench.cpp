// How fast codecs are on one core, beside a copy of the same elements: `codec_bench [ROUNDS]`. In each round every system has one
// turn. Memory is far larger than caches. Printed: medians over rounds, in gigabytes of float32 a second, and quartiles of the share
// of a copy's bandwidth that encode and decode reach together.
#include <fmt/format.h>
#include <lockstep/codec.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace {

using lockstep::Codec;

constexpr std::size_t kElements = std::size_t{16} << 20;
constexpr double kGigabytes = kElements * sizeof(float) / 1e9;

double seconds_of(const std::function<void()>& work) {
  const auto began = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

struct Memory {
  std::vector<float> from = std::vector<float>(kElements);
  std::vector<float> to = std::vector<float>(kElements);
  std::vector<std::byte> wire = std::vector<std::byte>(kElements * 2 + (1 << 20));
};

// One system: block by block, as a reduction does.
struct Contender {
  std::string name;
  lockstep::codec::Ptr codec;
  std::vector<double> encode, decode, share;

  void turn(Memory& memory, double copy) {
    const std::size_t bytes = codec->bytes(Codec::kBlock);
    encode.push_back(seconds_of([&] {
      for (std::size_t block = 0; block < kElements / Codec::kBlock; ++block)
        codec->encode({memory.from.data() + block * Codec::kBlock, Codec::kBlock},
                      memory.wire.data() + block * bytes);
    }));
    decode.push_back(seconds_of([&] {
      for (std::size_t block = 0; block < kElements / Codec::kBlock; ++block)
        codec->decode(memory.wire.data() + block * bytes,
                      {memory.to.data() + block * Codec::kBlock, Codec::kBlock});
    }));
    share.push_back(copy / (encode.back() + decode.back()));
  }
};

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 15;
  Memory memory;
  std::minstd_rand random(1);
  std::normal_distribution<float> normal;
  for (float& element : memory.from) element = normal(random);
  std::vector<Contender> contenders;
  for (const char* name : {"bf16", "fp16", "int8:plain", "one-bit", "top-k:0.01"})
    contenders.push_back({name, lockstep::codec::parse(name), {}, {}, {}});
  std::vector<double> copies;
  for (int round = 0; round <= rounds; ++round) {  // the first finds the pages
    const double copy = seconds_of(
        [&] { std::memcpy(memory.to.data(), memory.from.data(), kElements * sizeof(float)); });
    for (Contender& contender : contenders) contender.turn(memory, copy);
    if (round == 0) {
      for (Contender& contender : contenders)
        contender.encode = contender.decode = contender.share = {};
    } else {
      copies.push_back(copy);
    }
  }
  fmt::print("copy        {:6.2f} GB/s\n", kGigabytes / quantile(copies, 0.5));
  for (const Contender& of : contenders) {
    fmt::print(
        "{:<11} {:6.2f} GB/s encode  {:6.2f} GB/s decode  both {:.0f} % of a copy ({:.0f} to "
        "{:.0f})\n",
        of.name, kGigabytes / quantile(of.encode, 0.5), kGigabytes / quantile(of.decode, 0.5),
        100 * quantile(of.share, 0.5), 100 * quantile(of.share, 0.25),
        100 * quantile(of.share, 0.75));
  }
}

#include "tests/comm/nccl/device_cases.h"

#include <numeric>

#include "plan/tree.h"
#include "tests/support/all_to_all.h"
#include "tests/support/slow_build.h"

namespace lockstep::testing {
namespace {

using comm::NcclApi;

constexpr Algorithm kBitStable[] = {Algorithm::kAutomatic, Algorithm::kDirect,
                                    Algorithm::kHalvingDoubling, Algorithm::kTree};

std::string about(const Comm& comm, DType dtype, std::size_t count) {
  return fmt::format("rank {} of {}, {} x{}", comm.rank(), comm.size(), name(dtype), count);
}

template <typename T>
void all_reduce_bits(Comm& comm, NcclApi& api, const std::vector<std::size_t>& counts) {
  const TestStream stream(api);
  for (const std::size_t count : counts) {
    const auto inputs = inputs_for<T>(comm.size(), count);
    const auto expected = tree_sum(inputs);
    for (const std::size_t skip :
         {0UL, 1UL}) {  // memory that packs fit into, and such that does not
      OnDevice<T> data(api, stream, inputs[comm.rank()], skip);
      const Algorithm algorithm = kBitStable[(count + skip) % 4];
      comm.all_reduce(data.buffer(), {.algorithm = algorithm}).wait();
      require(same_bits(data.read(), expected),
              fmt::format("bits of the tree: {} {}", about(comm, dtype_of<T>(), count),
                          name(algorithm)));
    }
  }
}

void every_size(Comm& comm, NcclApi& api) {
  all_reduce_bits<float>(comm, api, {0, 1, 3, 17, 1023, 5001, 8192, 8193, 70'000, 300'003});
}

void every_type(Comm& comm, NcclApi& api) {
  const std::vector<std::size_t> counts{0, 1, 1025, 9999, 40'001};
  all_reduce_bits<double>(comm, api, counts);
  all_reduce_bits<Float16>(comm, api, counts);
  all_reduce_bits<BFloat16>(comm, api, counts);
  all_reduce_bits<std::int32_t>(comm, api, counts);
  all_reduce_bits<std::int64_t>(comm, api, counts);
  all_reduce_bits<std::uint8_t>(comm, api, counts);
}

template <typename T>
void scaled_bits(Comm& comm, NcclApi& api, std::size_t count, double factor) {
  const TestStream stream(api);
  const auto inputs = inputs_for<T>(comm.size(), count);
  std::vector<std::vector<Sum<T>>> wide;
  for (const auto& input : inputs) wide.emplace_back(input.begin(), input.end());
  std::vector<T> expected;
  for (const Sum<T> sum : tree_sum(wide)) expected.push_back(T(sum * static_cast<Sum<T>>(factor)));
  OnDevice<T> data(api, stream, inputs[comm.rank()]);
  comm.all_reduce(data.buffer(), {.factor = factor}).wait();
  require(same_bits(data.read(), expected), "scaled once: " + about(comm, dtype_of<T>(), count));
}

void factors(Comm& comm, NcclApi& api) {
  for (const std::size_t count : {5UL, 9999UL, 50'000UL}) {
    scaled_bits<float>(comm, api, count, 1.0 / 3);
    scaled_bits<double>(comm, api, count, 1.0 / 3);
    scaled_bits<Float16>(comm, api, count, 1.0 / 3);
    scaled_bits<BFloat16>(comm, api, count, 1.0 / 3);
  }
}

void least_and_most(Comm& comm, NcclApi& api) {
  const TestStream stream(api);
  const auto inputs = inputs_for<float>(comm.size(), 12'345);
  for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kNative}) {
    OnDevice<float> least(api, stream, inputs[comm.rank()]);
    OnDevice<float> most(api, stream, inputs[comm.rank()]);
    comm.all_reduce(least.buffer(), {.op = ReduceOp::kMin, .algorithm = algorithm}).wait();
    comm.all_reduce(most.buffer(), {.op = ReduceOp::kMax, .algorithm = algorithm}).wait();
    auto expected_least = inputs[0];
    auto expected_most = inputs[0];
    for (const auto& input : inputs) {
      for (std::size_t i = 0; i < input.size(); ++i) {
        expected_least[i] = std::min(expected_least[i], input[i]);
        expected_most[i] = std::max(expected_most[i], input[i]);
      }
    }
    require(least.read() == expected_least && most.read() == expected_most, name(algorithm));
  }
}

void shards(Comm& comm, NcclApi& api) {
  const TestStream stream(api);
  for (const std::size_t count : {2000UL, 60'001UL}) {
    for (const int all : {comm.size(), comm.size() + 1, 2 * comm.size() + 3, 13}) {
      const auto inputs = inputs_for<float>(all, count);
      std::vector<std::unique_ptr<OnDevice<float>>> partials;
      std::vector<Buffer> buffers;
      const auto hosted = plan::hosted_shards(comm.rank(), comm.size(), all);
      for (const auto& range : plan::held_partials(hosted, all)) {
        partials.push_back(std::make_unique<OnDevice<float>>(
            api, stream,
            tree_sum<float>({inputs.begin() + range.begin, inputs.begin() + range.end})));
        buffers.push_back(partials.back()->buffer());
      }
      // Into memory of its own, and into one of the partials.
      OnDevice<float> apart(api, stream, std::vector<float>(count));
      const Buffer result = all % 2 == 0 ? apart.buffer() : buffers.back();
      comm.reduce(buffers, all, result, {.factor = 0.25}).wait();
      auto expected = tree_sum(inputs);
      for (float& value : expected) value *= 0.25F;
      require(same_bits(all % 2 == 0 ? apart.read() : partials.back()->read(), expected),
              fmt::format("{} shards: {}", all, about(comm, DType::kFloat32, count)));
    }
  }
}

void pieces(Comm& comm, NcclApi& api) {
  const TestStream stream(api);
  std::vector<std::size_t> uneven(comm.size(), 0);
  uneven.front() = 700;
  uneven.back() += 300'301;
  const std::vector<std::vector<std::size_t>> cuts{{}, uneven};
  for (const auto& counts : cuts) {
    const auto inputs = inputs_for<float>(comm.size(), 301'001);
    OnDevice<float> data(api, stream, inputs[comm.rank()]);
    comm.reduce_scatter(data.buffer(), counts).wait();
    comm.all_gather(data.buffer(), counts).wait();
    require(same_bits(data.read(), tree_sum(inputs)), about(comm, DType::kFloat32, 301'001));
  }
}

template <typename T>
void slices_of_pairs(Comm& comm, NcclApi& api, const std::vector<std::size_t>& counts, bool even) {
  const TestStream stream(api);
  const TestStream other(api);
  const AllToAll<T> all(comm.size(), counts);
  const auto& expected = all.results[comm.rank()];
  const OnDevice<T> data(api, stream, all.data[comm.rank()]);
  const OnDevice<T> result(api, other, std::vector<T>(expected.size()), 1);
  const Work work =
      comm.all_to_all(data.buffer(), result.buffer(), even ? std::vector<std::size_t>{} : counts);
  work.wait();
  require(same_bits(result.read(), expected),
          fmt::format("{} of slices, the first with {}",
                      about(comm, dtype_of<T>(), expected.size()), counts[0]));
  require(work.how() == "all_to_all: direct", work.how());
}

void all_to_alls(Comm& comm, NcclApi& api) {
  const auto pairs = static_cast<std::size_t>(comm.size() * comm.size());
  for (const std::size_t count : {0UL, 1UL, 1025UL, 300'001UL}) {
    slices_of_pairs<float>(comm, api, std::vector<std::size_t>(pairs, count), true);
    slices_of_pairs<std::uint8_t>(comm, api, uneven_counts(comm.size(), count), false);
  }
  std::vector<std::size_t> last_to_first(pairs, 0);
  last_to_first[pairs - static_cast<std::size_t>(comm.size())] = 70'001;
  slices_of_pairs<BFloat16>(comm, api, last_to_first, false);
}

void broadcasts(Comm& comm, NcclApi& api) {
  const TestStream stream(api);
  for (int root = 0; root < comm.size(); ++root) {
    for (const std::size_t count : {0UL, 1UL, 100'000UL}) {
      OnDevice<double> data(api, stream,
                            rough_elements<double>(count, static_cast<std::uint32_t>(comm.rank())));
      comm.broadcast(data.buffer(), root).wait();
      require(
          same_bits(data.read(), rough_elements<double>(count, static_cast<std::uint32_t>(root))),
          fmt::format("from {}: {}", root, about(comm, DType::kFloat64, count)));
    }
  }
}

void native(Comm& comm, NcclApi& api) {
  const TestStream stream(api);
  const auto whole = inputs_for<std::int32_t>(comm.size(), 10'001);
  OnDevice<std::int32_t> data(api, stream, whole[comm.rank()]);
  const Work work = comm.all_reduce(data.buffer(), {.algorithm = Algorithm::kNative});
  work.wait();
  require(data.read() == tree_sum(whole), "native sums whole numbers exactly");
  require(comm.size() == 1 || work.how() == "all_reduce: native", work.how());
  std::vector<float> ones(100, 1.0F);
  OnDevice<float> mean(api, stream, ones);
  comm.all_reduce(mean.buffer(), {.factor = 1.0 / comm.size(), .algorithm = Algorithm::kNative})
      .wait();
  require(mean.read() == ones || comm.size() == 3, "native multiplies after the sum");
}

void fall_back(Comm& comm, NcclApi& api) {
  const TestStream stream(api);
  OnDevice<float> data(api, stream, std::vector<float>(5));
  const Work work = comm.all_reduce(data.buffer(), {.algorithm = Algorithm::kRing});
  work.wait();
  require(work.how() == "all_reduce: direct (asked for ring: GPUs run direct or native)",
          work.how());
}

// The buffers' streams are the only order between the operations and their operands.
void streams(Comm& comm, NcclApi& api) {
  const TestStream stream(api);
  const std::vector<std::int64_t> twos(50'000, 2);
  OnDevice<std::int64_t> data(api, stream, std::vector<std::int64_t>(twos.size(), 1));
  OnDevice<std::int64_t> source(api, stream, twos);
  OnDevice<std::int64_t> seen(api, stream, std::vector<std::int64_t>(twos.size(), 0));
  for (int round = 0; round < 20; ++round) {
    api.copy(data.buffer().data, source.buffer().data, data.buffer().bytes(), stream.get());
    const Work work = comm.all_reduce(data.buffer());
    work.wait_on(stream.get());
    api.copy(seen.buffer().data, data.buffer().data, data.buffer().bytes(), stream.get());
  }
  require(seen.read() == std::vector<std::int64_t>(twos.size(), 2 * comm.size()),
          "a stream that waits on a work sees its result");
}

void many_in_flight(Comm& comm, NcclApi& api) {
  const TestStream stream(api);
  std::vector<std::unique_ptr<OnDevice<std::int64_t>>> data;
  std::vector<Work> works;
  for (std::int64_t i = 0; i < 60; ++i) {
    data.push_back(std::make_unique<OnDevice<std::int64_t>>(
        api, stream, std::vector<std::int64_t>(static_cast<std::size_t>(i * 397 % 9500), i)));
  }
  for (const auto& one : data) works.push_back(comm.all_reduce(one->buffer()));
  for (std::size_t i = data.size(); i-- > 0;) {
    works[i].wait();
    require(works[i].done(), "a work that was waited for is done");
    const auto result = data[i]->read();
    require(result == std::vector<std::int64_t>(result.size(),
                                                comm.size() * static_cast<std::int64_t>(i)),
            fmt::format("operation {}", i));
  }
}

void channels(Comm& comm, NcclApi& api) {
  const TestStream stream(api);
  Comm first = comm.channel(101);
  Comm second = comm.channel(102);
  OnDevice<float> a(api, stream, std::vector<float>(3000, 1.0F));
  OnDevice<float> b(api, stream, std::vector<float>(50'000, 10.0F));
  // The ranks disagree on which comes first: only separate orders let both complete.
  std::vector<Work> works;
  if (comm.rank() == 1) works.push_back(second.all_reduce(b.buffer()));
  works.push_back(first.all_reduce(a.buffer()));
  if (comm.rank() != 1) works.push_back(second.all_reduce(b.buffer()));
  for (const Work& work : works) work.wait();
  require(a.read()[0] == static_cast<float>(comm.size()), "the first channel's sum");
  require(b.read()[49'999] == 10.0F * static_cast<float>(comm.size()), "the second channel's sum");
}

void splits(Comm& comm, NcclApi& api) {
  const TestStream stream(api);
  std::vector<int> low;
  std::vector<int> high;
  for (int rank = comm.size() - 1; rank >= 0; --rank) (rank % 2 == 0 ? low : high).push_back(rank);
  const auto& mine = comm.rank() % 2 == 0 ? low : high;
  Comm part = comm.split(mine);
  OnDevice<std::int32_t> data(api, stream, std::vector<std::int32_t>(20'000, 1 << comm.rank()));
  part.all_reduce(data.buffer()).wait();
  std::int32_t expected = 0;
  for (const int rank : mine) expected += 1 << rank;
  require(data.read() == std::vector<std::int32_t>(20'000, expected), "sums of each part");
  comm.barrier().wait();
}

// Everything that moves memory of the CPU works beside it, in the same order.
void host_memory(Comm& comm, NcclApi& api) {
  const TestStream stream(api);
  OnDevice<float> data(api, stream, std::vector<float>(1000, 1.0F));
  std::vector<float> host(70'000, 2.0F);
  const Work device_work = comm.all_reduce(data.buffer());
  const Work host_work = comm.all_reduce(buffer_of(host));
  host_work.wait();
  device_work.wait();
  require(host[69'999] == 2.0F * static_cast<float>(comm.size()), "host memory");
  require(data.read()[999] == static_cast<float>(comm.size()), "device memory");
  if (comm.size() == 1) return;
  std::vector<std::int32_t> out{comm.rank()};
  std::vector<std::int32_t> in{-1};
  const Work sent = comm.send((comm.rank() + 1) % comm.size(), buffer_of(out));
  const int before = (comm.rank() + comm.size() - 1) % comm.size();
  comm.recv(before, buffer_of(in)).wait();
  sent.wait();
  require(in[0] == before, "messages");
  const auto shared = comm.share(64);
  comm.barrier().wait();
}

void arenas(Comm& comm, NcclApi& api) {
  const TestStream stream(api);
  const auto arena = comm.device_arena(kFirstGpu, 400'000);
  require(arena->size() == 400'000 && arena->data() != nullptr, "an arena has the bytes asked for");
  const std::vector<float> ones(100'000, 1.0F);
  api.copy(arena->data(), ones.data(), 400'000, stream.get());
  const Buffer data{arena->data(), 100'000, DType::kFloat32, kFirstGpu, stream.get()};
  comm.all_reduce(data).wait();
  std::vector<float> back(100'000);
  api.copy(back.data(), arena->data(), 400'000, stream.get());
  stream.drain();
  require(back == std::vector<float>(100'000, static_cast<float>(comm.size())), "sums in an arena");
}

// Memory that lies apart, and one buffer of the same elements.
template <typename T>
class Apart {
 public:
  Apart(NcclApi& api, const TestStream& stream, const std::vector<T>& elements,
        const std::vector<std::size_t>& counts)
      : whole_(api, stream, elements) {
    auto next = elements.begin();
    for (const std::size_t count : counts) {
      const auto end = next + static_cast<std::ptrdiff_t>(count);
      // Every other one begins where packs do not.
      pieces_.push_back(std::make_unique<OnDevice<T>>(api, stream, std::vector<T>(next, end),
                                                      pieces_.size() % 2));
      next = end;
    }
  }

  Buffer whole() const { return whole_.buffer(); }
  std::vector<Buffer> pieces() const {
    std::vector<Buffer> buffers;
    for (const auto& piece : pieces_) buffers.push_back(piece->buffer());
    return buffers;
  }
  bool same() const {
    std::vector<T> all;
    for (const auto& piece : pieces_) {
      const auto elements = piece->read();
      all.insert(all.end(), elements.begin(), elements.end());
    }
    return same_bits(all, whole_.read());
  }

 private:
  OnDevice<T> whole_;
  std::vector<std::unique_ptr<OnDevice<T>>> pieces_;
};

template <typename T>
void apart_bits(Comm& comm, NcclApi& api, const std::vector<std::size_t>& counts) {
  const TestStream stream(api);
  const auto all = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  const auto inputs = inputs_for<T>(comm.size(), all);
  const ReduceOptions rules[] = {
      {},
      {.factor = 1.0 / 3},
      {.op = ReduceOp::kMax},
      {.algorithm = Algorithm::kNative},
      {.factor = 1.0 / 3, .algorithm = Algorithm::kNative},
  };
  constexpr bool kWhole = std::is_integral_v<T>;
  for (const ReduceOptions& rule : rules) {
    if (kWhole && rule.factor != 1) continue;
    // NCCL adds in an order that depends on where an element lies; two operands, and whole numbers, have but one sum.
    if (!kWhole && rule.algorithm == Algorithm::kNative && comm.size() > 2) continue;
    Apart<T> data(api, stream, inputs[comm.rank()], counts);
    comm.all_reduce(data.whole(), rule).wait();
    comm.all_reduce(data.pieces(), rule).wait();
    require(data.same(),
            fmt::format("pieces have the bits of one buffer: {} {} factor {} in {} pieces",
                        about(comm, dtype_of<T>(), all), name(rule.algorithm), rule.factor,
                        counts.size()));
  }
}

void pieces_apart(Comm& comm, NcclApi& api) {
  std::vector<std::size_t> many(150, 3);  // more than go at a time: short ones, then longer ones
  for (std::size_t i = 70; i < many.size(); ++i) many[i] = 500 + i;
  const std::vector<std::vector<std::size_t>> cuts{
      many,
      {0, 1, 3, 1000, 0, 17},              // short: everybody sums everything
      {1000, 3, 0, 1, 40'000, 7, 20'001},  // slices span pieces, and pieces slices
      {70'000},
      {0, 0},
      {},
  };
  for (const auto& counts : cuts) {
    apart_bits<float>(comm, api, counts);
    if (kSlowBuild) continue;  // a sanitizer sees the same for every type
    apart_bits<BFloat16>(comm, api, counts);
    apart_bits<std::int32_t>(comm, api, counts);
  }
}

void bad_input(Comm& comm, NcclApi& api) {
  const TestStream stream(api);
  OnDevice<float> data(api, stream, std::vector<float>(10, 1.0F));
  std::vector<float> host(10, 1.0F);
  const auto refused = [](const char* what, const std::function<void()>& call) {
    try {
      call();
    } catch (const BadInput&) {
      return;
    }
    require(false, what);
  };
  Buffer lie = buffer_of(host);
  lie.device = kFirstGpu;
  Buffer nowhere = data.buffer();
  nowhere.device.index = 77;
  const int other = (comm.rank() + 1) % comm.size();
  refused("host memory as a device's", [&] { static_cast<void>(comm.all_reduce(lie)); });
  refused("a GPU that is not there", [&] { static_cast<void>(comm.all_reduce(nowhere)); });
  refused("a message of device memory",
          [&] { static_cast<void>(comm.send(other, data.buffer())); });
  refused("partials and result apart",
          [&] { static_cast<void>(comm.reduce({data.buffer()}, comm.size(), buffer_of(host))); });
  OnDevice<double> doubles(api, stream, std::vector<double>(10, 1.0));
  refused("pieces of the host's memory", [&] {
    static_cast<void>(comm.all_reduce({buffer_of(host), buffer_of(host)}));
  });
  refused("pieces here and there", [&] {
    static_cast<void>(comm.all_reduce({data.buffer(), buffer_of(host)}));
  });
  refused("pieces of two types", [&] {
    static_cast<void>(comm.all_reduce({data.buffer(), doubles.buffer()}));
  });
  refused("a piece that is said to lie on a device", [&] {
    static_cast<void>(comm.all_reduce({data.buffer(), lie}));
  });
  refused("an all-to-all from a device to the host",
          [&] { static_cast<void>(comm.all_to_all(data.buffer(), buffer_of(host))); });
  refused("an all-to-all into its own data",
          [&] { static_cast<void>(comm.all_to_all(data.buffer(), data.buffer())); });
  refused("a factor for the most of some pieces", [&] {
    static_cast<void>(
        comm.all_reduce({data.buffer(), data.buffer()}, {.op = ReduceOp::kMax, .factor = 0.5}));
  });
  comm.all_reduce(data.buffer()).wait();
  require(data.read()[9] == static_cast<float>(comm.size()), "refusals harm nothing");
}

}  // namespace

std::vector<DeviceCase> device_cases() {
  return {
      {"AllReduceGivesTheBitsOfTheTreeForEverySize", {1, 2, 3, 4, 5, 8}, every_size},
      {"AllReduceGivesTheBitsOfTheTreeForEveryType", {1, 2, 3, 4}, every_type},
      {"AFactorMultipliesTheSumBeforeItIsRounded", {1, 2, 3, 4}, factors},
      {"LeastAndMostAreTakenElementByElement", {1, 3, 4}, least_and_most},
      {"ReducingShardsGivesTheSameBitsForEveryNumberOfWorkers", {1, 2, 3, 4, 5}, shards},
      {"ReduceScatterAndAllGatherFollowTheCounts", {1, 2, 3, 4}, pieces},
      {"AllToAllBringsEachSliceFromItsSenderToItsReceiver", {1, 2, 3, 4}, all_to_alls},
      {"BroadcastReachesEveryoneFromEveryRoot", {1, 2, 3, 4}, broadcasts},
      {"NativeIsTheLibrarysOwn", {1, 2, 3, 4}, native},
      {"AFallBackSaysWhatRanAndWhy", {2, 4}, fall_back},
      {"StreamsThatWaitOnAWorkSeeItsResult", {1, 2, 4}, streams},
      {"ManyOperationsInFlightRunInOrder", {2, 3, 4}, many_in_flight},
      {"ChannelsHaveAnOrderOfTheirOwn", {2, 4}, channels},
      {"SplitsWorkSideBySide", {4, 5}, splits},
      {"MemoryOfTheHostGoesBesideIt", {1, 2, 4}, host_memory},
      {"ArenasHoldBuffers", {1, 2, 4}, arenas},
      {"PiecesThatLieApartHaveTheBitsOfOneBuffer", {1, 2, 3, 4}, pieces_apart},
      {"BadInputIsThrownByTheCallAndHarmsNothing", {2, 4}, bad_input},
  };
}

}  // namespace lockstep::testing

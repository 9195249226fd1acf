#include "torch/replica/encoded_reduction.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>

#include "flat/fold.h"
#include "flat/tree_sum.h"

namespace lockstep::replica {
namespace {

Buffer buffer_of(std::byte* bytes, std::size_t count) {
  return {bytes, count, DType::kUInt8};
}

// Decoded blocks, one of each shard.
using Rows = std::vector<std::array<float, Codec::kBlock>>;

bool all_done(const std::vector<Work>& works) {
  return std::all_of(works.begin(), works.end(), [](const Work& work) { return work.done(); });
}

void wait_for(const std::vector<Work>& works) {
  for (const Work& work : works) work.wait();
}

}  // namespace

EncodedReduction::EncodedReduction(Comm& comm, Banks& banks, HostBlockEncoding& encoding)
    : banks_(banks), encoding_(encoding), owners_(same_workers(comm)), all_(same_workers(comm)) {}

std::byte* EncodedReduction::memory_of(const Flight& flight, int hosted) const {
  return bank_of(banks_, flight.sharded, hosted).memory().data();
}

void EncodedReduction::launch(const plan::Bucket& bucket, const Sharded* sharded,
                              const ReduceOptions& rule) {
  shards_ = sharded != nullptr ? sharded->shards : owners_.size();
  if (sharded == nullptr) encoding_.take_memory(owners_, shards_);
  for (const plan::BlockRange& part : encoding_.parts_of(bucket, owners_.size())) {
    Flight& flight = flights_.emplace_back();
    flight.blocks = part;
    flight.sharded = sharded;
    send_shards(flight, rule.factor);
    receive_shards(flight);
    go_on();
  }
  works_.emplace_back();  // launched() counts it; its works are those of the flights
}

void EncodedReduction::send_shards(Flight& flight, double factor) {
  const int workers = owners_.size();
  const int own = owners_.rank();
  const plan::ShardRange hosted = plan::hosted_shards(own, workers, shards_);
  flight.sent.resize(encoding_.bytes(flight.blocks) * static_cast<std::size_t>(hosted.size()));
  std::byte* next = flight.sent.data();
  // The next worker first, so that not all send to the first at once.
  for (int i = 1; i <= workers; ++i) {
    const int to = (own + i) % workers;
    const plan::BlockRange blocks = own_blocks(flight.blocks, to, workers);
    std::byte* const first = next;
    for (int number = 0; number < hosted.size(); ++number) {
      encoding_.encode(hosted.begin + number, blocks, factor, memory_of(flight, number), next);
      next += encoding_.bytes(blocks);
    }
    if (to == own || next == first) continue;
    flight.sends.push_back(
        owners_.send(to, buffer_of(first, static_cast<std::size_t>(next - first))));
  }
}

void EncodedReduction::receive_shards(Flight& flight) {
  const int workers = owners_.size();
  flight.heard.resize(static_cast<std::size_t>(workers));
  for (int i = 1; i < workers; ++i) {
    const int from = (owners_.rank() + workers - i) % workers;
    const int shards = plan::hosted_shards(from, workers, shards_).size();
    auto& bytes = flight.heard[static_cast<std::size_t>(from)];
    bytes.resize(encoding_.bytes(mine(flight)) * static_cast<std::size_t>(shards));
    if (!bytes.empty())
      flight.receives.push_back(owners_.recv(from, buffer_of(bytes.data(), bytes.size())));
  }
}

// A block of a worker's shard: where it is, or decoded into the row.
const void* EncodedReduction::operand(const Flight& flight, int worker, int hosted,
                                      std::size_t block, float* row) const {
  if (worker == owners_.rank())
    return memory_of(flight, hosted) +
           offset_of(encoding_.layout(), encoding_.layout().block(block));
  const plan::BlockRange blocks = mine(flight);
  const std::byte* const bytes = flight.heard[static_cast<std::size_t>(worker)].data() +
                                 encoding_.bytes(blocks) * static_cast<std::size_t>(hosted) +
                                 encoding_.bytes({blocks.begin, block});
  encoding_.decode(block, bytes, row);
  return row;
}

// The blocks that this worker owns: the sum over all shards in the order of the tree, encoded.
void EncodedReduction::average(Flight& flight) {
  const plan::BlockRange blocks = mine(flight);
  flight.averages.resize(encoding_.bytes(flight.blocks));
  const auto average_block = [&](std::size_t block, flat::TreeSum& sum, Rows& rows) {
    std::vector<const void*> operands;
    for (int worker = 0; worker < owners_.size(); ++worker) {
      const int hosted = plan::hosted_shards(worker, owners_.size(), shards_).size();
      for (int number = 0; number < hosted; ++number)
        operands.push_back(operand(flight, worker, number, block, rows[operands.size()].data()));
    }
    const plan::Stretch stretch = encoding_.layout().block(block);
    auto* const result =
        reinterpret_cast<float*>(memory_of(flight, 0) + offset_of(encoding_.layout(), stretch));
    sum.run(operands, result, stretch.count);
    encoding_.encode(encoding_.average(), block, 1, result,
                     flight.averages.data() + encoding_.bytes({flight.blocks.begin, block}));
  };
  constexpr std::int64_t kGrain = 16;
  at::parallel_for(static_cast<std::int64_t>(blocks.begin), static_cast<std::int64_t>(blocks.end),
                   kGrain, [&](std::int64_t begin, std::int64_t end) {
                     flat::TreeSum sum(plan::plan_of_one_each(shards_), {DType::kFloat32});
                     Rows rows(static_cast<std::size_t>(shards_));
                     for (std::int64_t block = begin; block < end; ++block)
                       average_block(static_cast<std::size_t>(block), sum, rows);
                   });
  flight.averaged = true;
}

void EncodedReduction::send_average(Flight& flight) {
  const auto part_of = [&](int worker) {
    const plan::BlockRange blocks = own_blocks(flight.blocks, worker, all_.size());
    return buffer_of(flight.averages.data() + encoding_.bytes({flight.blocks.begin, blocks.begin}),
                     encoding_.bytes(blocks));
  };
  for (int i = 1; i < all_.size(); ++i) {
    const int to = (all_.rank() + i) % all_.size();
    const int from = (all_.rank() + all_.size() - i) % all_.size();
    if (const Buffer own = part_of(all_.rank()); own.count > 0)
      flight.to_all.push_back(all_.send(to, own));
    if (const Buffer theirs = part_of(from); theirs.count > 0)
      flight.to_all.push_back(all_.recv(from, theirs));
  }
}

// What all shards have sent of some parts is there: their averages go to all while backward computes.
void EncodedReduction::go_on() {
  for (Flight& flight : flights_) {
    if (flight.averaged) continue;
    if (!all_done(flight.receives)) return;
    wait_for(flight.receives);  // one that has failed counts as done
    average(flight);
    send_average(flight);
  }
}

// In the flight's first bank, where this worker's own blocks are already.
void EncodedReduction::finish(const Flight& flight) {
  for (int worker = 0; worker < all_.size(); ++worker) {
    if (worker == all_.rank()) continue;
    const plan::BlockRange blocks = own_blocks(flight.blocks, worker, all_.size());
    encoding_.decode(blocks,
                     flight.averages.data() + encoding_.bytes({flight.blocks.begin, blocks.begin}),
                     memory_of(flight, 0));
  }
}

void EncodedReduction::wait(Met) {
  for (Flight& flight : flights_) {
    wait_for(flight.receives);
    go_on();
  }
  for (Flight& flight : flights_) {
    wait_for(flight.sends);
    wait_for(flight.to_all);
    finish(flight);
  }
  flights_.clear();
  works_.clear();
}

}  // namespace lockstep::replica

// How the gradients of all workers become one average. A class for each way:
//
//   in one pass   if workers share memory: all buckets at the end of backward
//   by messages   a bucket goes to the wire as soon as its gradients are complete. If a host has
//                 several workers, it goes in two levels: first through the memory of the host
//   encoded       by messages, with a codec: encoded_reduction.h
//   on a GPU      the same on streams: device_reduction.h
//
// What is reduced is one gradient of each worker, or the banks of the shards that each worker
// hosts.
#pragma once

#include <lockstep/comm.h>

#include <memory>
#include <optional>
#include <vector>

#include "plan/buckets.h"
#include "plan/tree.h"
#include "torch/replica/encoding.h"
#include "torch/replica/gradient_source.h"

namespace lockstep::replica {

// Which partials a worker that hosts several shards adds to the sum over all shards.
struct Sharded {
  int shards = 0;                         // of all workers
  std::vector<int> held;                  // banks of this worker, in shard order
  std::vector<plan::Reduction> partials;  // how to sum them: each over the next few of `held`
  const plan::ShardedReduction* everyones = nullptr;  // the same of all workers
};

// Where the gradients of a hosted shard are, by its number among them.
const FlatGradients& bank_of(const Banks& banks, const Sharded* sharded, int hosted);

// Owned by Parts; a Pass uses it.
//
// Threads:   one caller at a time.
// Blocking:  wait(), at most the Comm's timeout. It does not wait for a GPU. With a codec also launch():
//            the first of a drop-in loop, which takes the memory for error feedback, and on a GPU each
//            one, until all workers have launched the bucket before.
// Failure:   that of the collective.
// Ownership: borrows the Comm and the banks.
class Reduction {
 public:
  virtual ~Reduction() = default;

  // Whether buckets go before backward has ended, and whether other workers take part.
  virtual bool early() const { return true; }
  virtual bool travels() const { return true; }

  // Before all workers meet at the end of a pass: looks what the program has written to averages
  // that the workers of a host share.
  virtual void look() {}

  // Reduces the next bucket, in layout order. The sum times the rule's factor goes where the
  // gradients were; with `sharded`, into bank 0.
  virtual void launch(const plan::Bucket& bucket, const Sharded* sharded,
                      const ReduceOptions& rule) = 0;
  std::size_t launched() const { return works_.size(); }

  // Whether all workers have met since their last gradient. Where they share memory, all gradients
  // are there then.
  enum class Met : bool { kNo, kYes };
  // Afterwards the averages are there; on a GPU, for what is queued later.
  virtual void wait(Met met = Met::kNo);

 protected:
  std::vector<Work> works_;  // by bucket
};

class MessageReduction : public Reduction {
 public:
  MessageReduction(Comm& comm, Banks& banks) : comm_(comm), banks_(banks) {}
  void launch(const plan::Bucket& bucket, const Sharded* sharded,
              const ReduceOptions& asked) override;

 private:
  Work reduce_banks(const plan::Bucket& bucket, const Sharded& sharded, const ReduceOptions& rule);

  Comm& comm_;
  Banks& banks_;
};

// In shared memory buckets wait for the end of backward: a reduction beside it would take cores
// from it. Then each worker adds everybody's gradients of its slice, on all threads of LibTorch. It
// writes the average once, for all workers of the host, or to the front of each
// (Banks::share_averages).
// With an encoding each worker encodes its own shards first, and the average before it writes it.
class OnePassReduction : public Reduction {
 public:
  // `encoding`: null without a codec.
  OnePassReduction(Comm& comm, Banks& banks, const ModelPlan& plan, HostBlockEncoding* encoding);
  bool early() const override { return false; }
  void look() override;
  void launch(const plan::Bucket& bucket, const Sharded* sharded,
              const ReduceOptions& rule) override;
  void wait(Met met) override;

 private:
  void encode_shards();
  void write(const GradientSource& source);

  Comm& comm_;
  Banks& banks_;
  const ModelPlan& plan_;
  HostBlockEncoding* encoding_;
  std::optional<GradientSource> source_;  // of what was launched
  const Sharded* sharded_ = nullptr;      // the same; null: one gradient of each worker
  double factor_ = 1;
};

// A Comm of its own with the same workers, for another order of operations. Collective.
Comm same_workers(Comm& comm);

// The class for the device, and for how workers reach each other. Borrows its arguments. `encoding`: null without a codec.
std::unique_ptr<Reduction> reduction_of(Comm& comm, Banks& banks, const ModelPlan& plan,
                                        const DataParallelOptions& options, Encoding* encoding);

}  // namespace lockstep::replica

// How the gradients of all workers become one average: a strategy for each way.
//
//   in one pass   where workers share memory: all at once, at the end of backward
//   by messages   a bucket goes to the wire as soon as its gradients are there
//   on a GPU      the same on streams: device_reduction.h
//
// What is reduced is one gradient of each worker, or what its banks hold of the shards that it hosts.
#pragma once

#include <lockstep/comm.h>

#include <memory>
#include <vector>

#include "plan/buckets.h"
#include "plan/tree.h"
#include "torch/replica/banks.h"

namespace lockstep::replica {

// What a worker that hosts several shards has of the sum over all of them.
struct Sharded {
  int shards = 0;
  std::vector<int> held;                  // banks, in shard order
  std::vector<plan::Reduction> partials;  // over consecutive ones of them
};

// Threads:   one caller at a time.
// Blocking:  wait(), at most the Comm's timeout; on a GPU, not for the GPU.
// Failure:   that of the collective.
// Ownership: borrows the Comm and the banks.
class Reduction {
 public:
  virtual ~Reduction() = default;

  // Whether buckets go before backward has ended, and whether anybody else is there to reduce with.
  virtual bool early() const { return true; }
  virtual bool travels() const { return true; }

  // The next bucket. Its sum times the factor of the rule goes where its gradients were, or into the first bank.
  virtual void launch(const plan::Bucket& bucket, const Sharded* sharded,
                      const ReduceOptions& rule) = 0;
  std::size_t launched() const { return works_.size(); }

  // The averages are there for what comes next; on a GPU, for what is queued next.
  virtual void wait();

 protected:
  std::vector<Work> works_;  // by bucket
};

class MessageReduction : public Reduction {
 public:
  MessageReduction(Comm& comm, Banks& banks) : comm_(comm), banks_(banks) {}
  void launch(const plan::Bucket& bucket, const Sharded* sharded,
              const ReduceOptions& rule) override;

 private:
  Work reduce_banks(const plan::Bucket& bucket, const Sharded& sharded, const ReduceOptions& rule);

  Comm& comm_;
  Banks& banks_;
};

// Workers in shared memory wait for the end of backward: its last gradients come from the same cores.
class OnePassReduction : public MessageReduction {
 public:
  using MessageReduction::MessageReduction;
  bool early() const override { return false; }
};

// The one for where the gradients are and for how workers reach them. Borrows all of them.
std::unique_ptr<Reduction> reduction_of(Comm& comm, Banks& banks, const ModelPlan& plan,
                                        const DataParallelOptions& options);

}  // namespace lockstep::replica

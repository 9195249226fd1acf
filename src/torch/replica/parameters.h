// The values of all trained parameters in one flat memory. A class for each way to keep them:
//
//   private copies   each worker has all values. If workers share memory, the owner of a slice
//                    writes its new values to every copy
//   one copy         the workers of a host read one memory, and each writes its own slice
//
// An update calls publish() for each piece that it has written. Then every worker calls acquire(),
// to have what the others published before the next forward pass. A partition of parameters would
// be another class here: publish() would begin an all-gather of the own slice, and acquire() would
// wait for the other slices.
#pragma once

#include <lockstep/data_parallel.h>

#include <memory>
#include <vector>

#include "plan/layout.h"
#include "torch/replica/flat_memory.h"

namespace lockstep::replica {

// Owned by Parts.
//
// Threads:   one caller at a time; publish() also from the threads of an update, each stretch once.
// Blocking:  acquire(), as_one_copy() and the constructors, which are collective; at most the
//            Comm's timeout.
// Failure:   Unavailable if there is too little memory; BadInput from take_back().
// Ownership: shares the tensors; the memory lives as long as any of them views it.
class Parameters {
 public:
  virtual ~Parameters() = default;
  Parameters(const Parameters&) = delete;
  Parameters& operator=(const Parameters&) = delete;

  // An update has written this stretch to this worker's memory: copies it to the other memories.
  virtual void publish(const plan::Stretch& stretch) const = 0;
  // Waits until all workers have published their slices of this update.
  virtual void acquire(Comm& comm) = 0;

  // The same values in one copy per host. Null if it is one copy already, or if workers do not
  // share memory.
  virtual std::unique_ptr<Parameters> as_one_copy(Comm& /*comm*/) const { return nullptr; }

  // Whether a parameter still views the flat memory. torch::load() and module->to() give it other
  // memory.
  bool holds(std::size_t entry) const;

  // Copies a moved parameter's values back into the flat memory. BadInput, naming the parameter, if
  // it has another type, shape or device now. BadInput also if workers share one copy, because no
  // worker writes to that alone.
  void take_back(std::size_t entry);

  // Only Lockstep may write to parameters that workers share, between a pass and its update, and
  // between the steps of a loop. written_by_others() says whether something else has written since
  // note_values(); after forget_values() it does not know.
  virtual void note_values() {}
  virtual void forget_values() {}
  virtual bool written_by_others() const { return false; }

  const FlatMemory& memory() const { return memory_; }

 protected:
  // `trained`: by entry of the layout.
  Parameters(std::vector<NamedTensor> trained, const plan::Layout& layout, FlatMemory memory);

  // Every parameter becomes a view of the memory. Its values are copied there; kLeft: another
  // worker copies them.
  enum class Values : bool { kCopied, kLeft };
  void move_in(Values values);
  virtual void put_back(std::size_t entry) = 0;

  std::vector<NamedTensor> trained_;
  std::vector<torch::Tensor> views_;  // by entry: the flat memory as tensors
  plan::Layout layout_;
  FlatMemory memory_;
};

// One copy per host if `copies` says so and workers share memory; else private copies. `trained` is
// in registration order, and has the same values on every worker. Collective.
std::unique_ptr<Parameters> make_parameters(Comm& comm, const std::vector<NamedTensor>& trained,
                                            const plan::Layout& layout, Copies copies,
                                            Device device);

}  // namespace lockstep::replica

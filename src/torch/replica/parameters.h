// The values of all trained parameters in one flat memory. A class for each way to keep them:
//
//   private copies   each worker has all values. If workers share memory, the owner of a slice
//                    writes its new values to every copy
//   one copy         the workers of a host read one memory, and each writes its own slice. If the
//                    program writes to parameters, only its worker sees that (HostCopy). On several
//                    hosts there is one copy on each
//
// An update calls begin_update(), then publish() for each piece that it has written. Then every
// worker calls acquire(), to have what the others published before the next forward pass. A
// partition of parameters would be another class here: publish() would begin an all-gather of the
// own slice, and acquire() would wait for the other slices.
#pragma once

#include <lockstep/data_parallel.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/written_pages.h"
#include "plan/layout.h"
#include "torch/replica/flat_memory.h"

namespace lockstep::replica {

// Owned by Parts.
//
// Threads:   one caller at a time; publish() also from the threads of an update, each stretch once.
// Blocking:  acquire(), share_values() and the constructors, which are collective; at most the
//            Comm's timeout.
// Failure:   Unavailable if there is too little memory; BadInput from take_back().
// Ownership: shares the tensors; the memory lives as long as any of them views it.
class Parameters {
 public:
  virtual ~Parameters() = default;
  Parameters(const Parameters&) = delete;
  Parameters& operator=(const Parameters&) = delete;

  // Looks what the program has written since the last update. Returns a digest of it; 0 if there is
  // nothing, or if that is not known. From here until acquire() has returned, only an update writes.
  virtual std::uint64_t look() { return 0; }
  // All workers have looked. `own`: the bytes of the slice that this worker updates. What its
  // program wrote there are the old values.
  virtual void begin_update(base::ByteRange /*own*/) {}
  // An update has written this stretch to memory(): copies it to the other memories.
  virtual void publish(const plan::Stretch& stretch) const = 0;
  // Waits until all workers have published their slices of this update. `left_alone`: by entry,
  // those that nobody has written; empty: none.
  virtual void acquire(Comm& host, const std::vector<bool>& left_alone) = 0;
  // The part of it that waits for nobody: this worker sees what was published.
  virtual void renew(const std::vector<bool>& /*left_alone*/) {}

  // What all workers have written to parameters they share from now on. Mismatch if they have
  // written different values. Collective.
  virtual void share_values(const Workers& /*workers*/) {}
  // The same for the workers of one host, which have written the same values. Another host may have written others, or
  // none. Collective on each host.
  virtual void share_on_host(Comm& /*host*/) {}

  // Whether a parameter still views the flat memory. torch::load() and module->to() give it other
  // memory.
  bool holds(std::size_t entry) const;

  // Copies a moved parameter's values back into the flat memory. BadInput, naming the parameter, if
  // it has another type, shape or device now.
  void take_back(std::size_t entry);

  // What an update reads and writes; and what the program sees.
  const FlatMemory& memory() const { return memory_; }
  virtual const FlatMemory& seen() const { return memory_; }

 protected:
  // `trained`: by entry of the layout.
  Parameters(std::vector<NamedTensor> trained, const plan::Layout& layout, FlatMemory memory);

  // Copies the values of every parameter to `memory_`; and makes every parameter a view of `seen`.
  // Not before all values are there: if another worker is lost before that, this worker still has
  // them.
  void copy_in();
  void show(const FlatMemory& seen);

  std::vector<NamedTensor> trained_;
  std::vector<torch::Tensor> views_;  // by entry: what the program sees, as tensors
  plan::Layout layout_;
  FlatMemory memory_;
};

// One copy per host if its workers share memory; null if they do not. `trained` is in registration
// order, and has the same values on every worker. Collective.
std::unique_ptr<Parameters> make_parameters(const Workers& workers,
                                            const std::vector<NamedTensor>& trained,
                                            const plan::Layout& layout, Device device);
// The same with private copies.
std::unique_ptr<Parameters> make_private_parameters(Comm& comm,
                                                    const std::vector<NamedTensor>& trained,
                                                    const plan::Layout& layout, Device device);

}  // namespace lockstep::replica

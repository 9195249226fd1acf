// The values of all trained parameters in one memory, in the fixed layout: a strategy for each way to keep them.
//
//   private copies   each worker has all values; who updates some gives them to the others
//   one copy         the workers of a host read one memory, and each writes its own part
//
// A step meets them in two places: an update publishes what it has written, and everybody acquires what the others have
// published before the next forward pass. A partition of parameters is another class here: publish() begins an all-gather
// of the own part, acquire() waits for the parts of the others, and where they are not kept between passes they come layer
// by layer.
#pragma once

#include <lockstep/data_parallel.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "plan/layout.h"
#include "torch/replica/flat_memory.h"

namespace lockstep::replica {

// Threads:   one caller at a time; publish() from any thread, each stretch from one.
// Blocking:  acquire() and what makes one, which are collective; at most the Comm's timeout.
// Failure:   Unavailable when there is no memory for them; BadInput from take_back().
// Ownership: shares the tensors; the memory lives as long as any of them views it.
class Parameters {
 public:
  virtual ~Parameters() = default;
  Parameters(const Parameters&) = delete;
  Parameters& operator=(const Parameters&) = delete;

  // An update has written this stretch here: it goes to those who read another memory.
  virtual void publish(const plan::Stretch& stretch) const = 0;
  // Waits until all that workers have published of this update is here.
  virtual void acquire(Comm& comm) = 0;

  // The same values in one copy per host; null where it is so, or where workers do not share memory.
  virtual std::unique_ptr<Parameters> as_one_copy(Comm& /*comm*/) const { return nullptr; }

  // Whether a parameter's values are where they were put. torch::load() and module->to() give a parameter other memory.
  bool holds(std::size_t entry) const;

  // Copies a moved parameter's values back into the flat memory. BadInput, naming the parameter, if it has another type,
  // shape or device now, or if workers share one copy, which no worker writes to alone.
  void take_back(std::size_t entry);

  // Whether something other than Lockstep has written to them: between a pass and an update nothing should.
  virtual void note_pass() {}
  virtual void note_update() {}
  virtual bool written_by_others() const { return false; }

  const FlatMemory& memory() const { return memory_; }

 protected:
  // `trained`: by entry of the layout.
  Parameters(std::vector<NamedTensor> trained, const plan::Layout& layout, FlatMemory memory);

  // Every parameter becomes a view of the memory; its values are copied there, or another worker does that.
  enum class Values : bool { kCopied, kLeft };
  void move_in(Values values);
  virtual void put_back(std::size_t entry) = 0;

  std::vector<NamedTensor> trained_;
  std::vector<torch::Tensor> views_;  // by entry: where each should be
  plan::Layout layout_;
  FlatMemory memory_;
};

// Chosen here: one copy per host where that is asked for and workers share memory. Every worker holds the same values in
// `trained`, which is in registration order. Collective.
std::unique_ptr<Parameters> make_parameters(Comm& comm, const std::vector<NamedTensor>& trained,
                                            const plan::Layout& layout, Copies copies,
                                            Device device);

}  // namespace lockstep::replica

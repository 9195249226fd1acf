// The one flat order of all parameters, fixed for the job.
//
//   order   reverse registration order: about the order in which backward finishes them
//   entry   one parameter: its offset in bytes, a multiple of 64, and its size
//   gap     the bytes between the end of an entry and the next multiple of 64. Gaps are reduced
//           with their bucket, so the memory must be cleared once when it is made
//   block   1,024 consecutive elements of one parameter, counted from its start; the last one may
//           be shorter. Blocks are numbered through the layout and never span two parameters
//
// Parameters of several dtypes share one flat memory in this order. A bucket never spans two dtypes
// (buckets.h). 64 is a multiple of every element size, so the distance between two entries of one
// dtype is a whole number of elements.
#pragma once

#include <lockstep/buffer.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::plan {

inline constexpr std::size_t kEntryAlignment = 64;
inline constexpr std::size_t kBlockElements = 1024;

// One parameter as the model registers it.
struct Parameter {
  std::string name;
  DType dtype = DType::kFloat32;
  std::size_t count = 0;  // elements; zero is allowed
};

struct Entry {
  std::string name;
  DType dtype = DType::kFloat32;
  std::size_t count = 0;          // elements
  std::size_t offset = 0;         // bytes from the start of the layout
  std::size_t registered = 0;     // its index in registration order
  std::size_t first_element = 0;  // elements of all entries before it; gaps do not count
  std::size_t first_block = 0;    // blocks of all entries before it

  std::size_t bytes() const { return count * size_of(dtype); }
  std::size_t blocks() const { return (count + kBlockElements - 1) / kBlockElements; }
};

// `count` elements of one entry, from its element `first` on.
struct Stretch {
  std::size_t entry = 0;
  std::size_t first = 0;
  std::size_t count = 0;
  bool operator==(const Stretch&) const = default;
};

// All entries of a model, and how to find them.
//
// Threads:   immutable after construction; any thread may read.
// Blocking:  never.
// Failure:   the constructor throws BadInput for duplicate names, unknown dtypes, and sizes that no
//            memory can hold. An index out of range is a bug of the caller and stops the process.
// Ownership: a value; references to entries are valid as long as it lives.
class Layout {
 public:
  // `parameters` in registration order.
  explicit Layout(const std::vector<Parameter>& parameters);

  const std::vector<Entry>& entries() const { return entries_; }
  std::size_t bytes() const { return bytes_; }  // a multiple of 64
  std::size_t elements() const { return elements_; }
  std::size_t blocks() const { return blocks_; }

  // The index of an entry: by name (BadInput if there is none), or by index in registration order.
  std::size_t entry_of(std::string_view name) const;
  std::size_t entry_of_registered(std::size_t index) const;

  // The elements of a block.
  Stretch block(std::size_t number) const;

 private:
  void append(const Parameter& parameter, std::size_t registered);

  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::size_t bytes_ = 0;
  std::size_t elements_ = 0;
  std::size_t blocks_ = 0;
};

}  // namespace lockstep::plan

// What an optimizer does on a device: tasks over ranges of chunks (chunks.h), queued on a stream.
//
// Nothing is allocated and nobody waits. Whoever puts an update into a CUDA graph keeps its numbers in the device's memory,
// where they can change; else they travel with the kernel. Results have the bits of the CPU's kernels for finite values.
//
//   kept      what a step computes on, and keeps its states in: the parameters; or, for half types, float32 masters, from
//             which a parameter is rounded once
//   gradient  is taken as it would lie in flat memory: one that was left where backward made it as 0 + g, a wider one
//             rounded to the type of what is kept; then it is multiplied by the factor, and rounded so again
//
// Flat memories begin at multiples of 16 bytes; gradients outside of them need not. All pointers are the device's, and
// belong to the caller until the stream has passed the task.
#pragma once

#include <lockstep/buffer.h>

#include <cstddef>
#include <cstdint>

#include "flat/chunks.h"
#include "flat/update_element.h"

namespace lockstep::flat {

struct TablesView {
  const Chunk* chunks = nullptr;
  const EntryOffsets* places = nullptr;
};

// One of `flat` and `entries`.
struct DeviceGradients {
  DType dtype = DType::kFloat32;  // the parameters', or float32 for half types
  const void* flat = nullptr;     // as the parameters; the wide layout if the dtype is not theirs.
                                  // Not for types that take turns
  const void* const* entries = nullptr;  // by entry; a null one is zeros
};

// What the elements of a range are: `dtype` is that of all its parameters.
struct DeviceRange {
  TablesView tables;
  ChunkRange chunks;
  DType dtype = DType::kFloat32;
};

// Rules whose numbers fit into a task.
inline constexpr std::size_t kFewRules = 4;

enum class UpdateRule : std::uint8_t { kSgd, kAdam };

// Parities (comm/core/parity.h) by piece, which are XORed to what is there: of kept values and states, of parameters
// beside masters too; and of the gradients that were applied, in the type of what is kept.
struct WatchedWords {
  unsigned long long* before = nullptr;  // null: not watched
  unsigned long long* after = nullptr;
  unsigned long long* applied = nullptr;
};

// A few bytes that go along with an update: from the device's memory to wherever it can write, such as pinned memory of the
// host, which has them when the update is done.
struct Note {
  const void* from = nullptr;
  void* to = nullptr;
  std::uint32_t bytes = 0;
};

struct UpdateTask {
  DeviceRange range;
  UpdateRule rule = UpdateRule::kAdam;
  // element::SgdNumbers<double> or element::AdamNumbers<double>, by the rule of a chunk: in the device's memory, or, where
  // that is null, in the task itself, for few rules.
  const void* numbers = nullptr;
  alignas(8) std::byte few[kFewRules * sizeof(element::AdamNumbers<double>)] = {};
  void* parameters = nullptr;
  float* masters = nullptr;  // in the wide layout; null: none
  // Momentum; or mean and square, typed as what is kept, and laid out as the parameters or in the wide layout, as masters
  // are. The momentum may be null if no rule has any.
  void* states[2] = {nullptr, nullptr};
  bool wide_states = false;
  DeviceGradients gradients;
  const double* factor = nullptr;       // null: 1
  const std::uint32_t* skip = nullptr;  // not 0 there: nothing is written
  WatchedWords watched;
  Note note;  // also when the update is skipped
};
void queue_update(const UpdateTask& task, void* stream);

// squares[b] = the sum of squares of the gradients of block b of the layout, in the order of sum_of_squares.
struct SquaresTask {
  DeviceRange range;
  DeviceGradients gradients;
  bool masters = false;  // as in the update: whether wider gradients stay so
  double* squares = nullptr;
};
void queue_squares(const SquaresTask& task, void* stream);

// The norm of all gradients, and what they are multiplied by so that it is at most `most`.
struct Clipping {
  double norm = 0;
  double factor = 1;
  std::uint32_t skip = 0;  // 1: the norm is not finite
};
struct ClipTask {
  const double* squares = nullptr;  // of all blocks
  std::size_t blocks = 0;
  double most = 0;                   // 0: the factor is 1
  double* partials = nullptr;        // clip_partials(blocks) of them, as scratch
  std::uint32_t* arrived = nullptr;  // 0 before the first task, and after each
  Clipping* result = nullptr;
};
std::size_t clip_partials(std::size_t blocks);
void queue_clip(const ClipTask& task, void* stream);

// flat = 0 + gradient, or flat + gradient, from where backward made them. Of parameters without a gradient: zeros, or
// nothing is added. What lies in the place of an entry that is left alone stays.
inline constexpr std::uintptr_t kLeftAlone = 1;  // as an address, where no gradient lies
inline const void* left_alone() {
  return reinterpret_cast<const void*>(kLeftAlone);  // NOLINT(performance-no-int-to-ptr)
}
struct GatherTask {
  DeviceRange range;
  const void* const* entries = nullptr;  // by entry, of the range's dtype; null, or left_alone()
  void* flat = nullptr;
  DType flat_dtype = DType::kFloat32;  // the range's, or float32 for half types
  bool wide = false;                   // it is in the wide layout, whatever the range's dtype
  bool adds = false;
};
void queue_gather(const GatherTask& task, void* stream);

}  // namespace lockstep::flat

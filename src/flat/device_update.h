// What an optimizer does on a device: tasks over ranges of chunks (chunks.h), queued on a stream.
//
// Nothing is allocated, and nothing waits. If an update is part of a CUDA graph, its numbers are in
// the device's memory, where they can change between replays. Else they are arguments of the
// kernel. For finite values the results have the same bits as those of the loops for CPUs.
//
//   kept      the values on which a step computes: the parameters, or for half types float32
//             masters. States have the same type. A parameter is rounded once from its master
//   gradient  is used as if it were in flat memory. If it was left where backward made it, it
//             counts as 0 + g. A wider gradient is rounded to the kept type. Then it is multiplied
//             by the factor and rounded again, and limited
//
// Flat memories begin at multiples of 16 bytes; other gradients need not. All pointers are pointers
// of the device. Their memory must stay valid until the stream has done the task.
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

// Set either `flat` or `entries`.
struct DeviceGradients {
  DType dtype = DType::kFloat32;  // that of the parameters, or float32 for half types
  const void* flat = nullptr;     // in the parameters' layout; in the wide layout if the dtype is
                                  // not theirs. Not if types alternate in the layout
  const void* const* entries = nullptr;  // by entry; null means zeros
};

// A range of chunks whose parameters all have the type `dtype`.
struct DeviceRange {
  TablesView tables;
  ChunkRange chunks;
  DType dtype = DType::kFloat32;
};

// The number of rules whose numbers fit into a task.
inline constexpr std::size_t kFewRules = 4;

enum class UpdateRule : std::uint8_t { kSgd, kAdam, kRmsProp, kAdagrad, kLars, kLamb };
inline UpdateRule rule_of(const SgdStep&) {
  return UpdateRule::kSgd;
}
inline UpdateRule rule_of(const AdamStep&) {
  return UpdateRule::kAdam;
}
inline UpdateRule rule_of(const RmsPropStep&) {
  return UpdateRule::kRmsProp;
}
inline UpdateRule rule_of(const AdagradStep&) {
  return UpdateRule::kAdagrad;
}
inline UpdateRule rule_of(const LarsStep&) {
  return UpdateRule::kLars;
}
inline UpdateRule rule_of(const LambStep&) {
  return UpdateRule::kLamb;
}

// The memory that the numbers of one rule need in a task.
inline constexpr std::size_t kNumbersBytes = sizeof(element::AdamNumbers<double>);
static_assert(sizeof(element::SgdNumbers<double>) <= kNumbersBytes &&
              sizeof(element::RmsPropNumbers<double>) <= kNumbersBytes &&
              sizeof(element::AdagradNumbers<double>) <= kNumbersBytes &&
              sizeof(element::LarsNumbers<double>) <= kNumbersBytes &&
              sizeof(element::LambNumbers<double>) <= kNumbersBytes);

// Parities (flat/parity.h) by piece. The kernel XORs to what is there. `before` and `after` are
// over kept values and states, and over parameters that have masters. `applied` is over the
// gradients that were applied, in the kept type.
struct WatchedWords {
  unsigned long long* before = nullptr;  // null: without parity
  unsigned long long* after = nullptr;
  unsigned long long* applied = nullptr;
};

// A few bytes that the kernel of an update copies: from the device's memory to any memory that it
// can write, such as pinned memory of the host. They are there when the update is done. This saves
// a copy of its own on the stream.
struct Note {
  const void* from = nullptr;
  void* to = nullptr;
  std::uint32_t bytes = 0;
};

struct UpdateTask {
  DeviceRange range;
  UpdateRule rule = UpdateRule::kAdam;
  // What element::numbers_of() makes of each step, indexed by the rule of a chunk. They are in the
  // device's memory; if `numbers` is null, they are in the task itself (at most kFewRules).
  const void* numbers = nullptr;
  alignas(8) std::byte few[kFewRules * kNumbersBytes] = {};
  void* parameters = nullptr;
  float* masters = nullptr;  // in the wide layout; null: none
  // In the order of the step (update_loops.h), in the kept type. They have the layout of the
  // parameters, or the wide layout (`wide_states`) as masters have. Null if no rule uses the state.
  void* states[kMostStates] = {};
  bool wide_states = false;
  DeviceGradients gradients;
  const double* factor = nullptr;  // null: 1
  double limit = 0;                // of each element, after the factor; 0: none
  const double* trusts = nullptr;  // of a layer-wise rule, by entry; null: 1
  // An average of the kept values, in the layout of the states; null: none. Half types need masters
  // for it. `fresh`: the weight of the new values, 1 − decay.
  void* average = nullptr;
  double fresh = 0;
  const std::uint32_t* skip = nullptr;  // if it points to a value other than 0, nothing is updated
  WatchedWords watched;
  Note note;  // copied even if the update is skipped
};
void queue_update(const UpdateTask& task, void* stream);

// Norms. A row has one number for each block of the layout: the sum of squares of its values, in the
// order of sum_of_squares, or their largest magnitude.
enum class Measure : std::uint8_t { kSquares, kLargest };

// row[b] = a number of the gradients of block b, before a factor.
struct MeasureTask {
  DeviceRange range;
  DeviceGradients gradients;
  bool masters = false;  // whether there are masters: then float32 gradients are not rounded
  double* row = nullptr;
  Measure measure = Measure::kSquares;
  double limit = 0;  // of each element; 0: none
};
void queue_measure(const MeasureTask& task, void* stream);

// row[b] = the sum of squares of the parameters of block b.
struct WeightsTask {
  DeviceRange range;
  void* parameters = nullptr;
  double* row = nullptr;
};
void queue_weights(const WeightsTask& task, void* stream);

// row[b] = the sum of squares of the changes of block b, before the trust, that an update by LAMB
// would make. The update's skip, average and watched words are not used.
struct ChangesTask {
  UpdateTask update;
  double* row = nullptr;
};
void queue_changes(const ChangesTask& task, void* stream);

// The norm over a row, and the factor that makes it at most `most`.
struct Clipping {
  double norm = 0;
  double factor = 1;
  std::uint32_t skip = 0;  // 1: the norm is not finite
};
struct ClipTask {
  const double* row = nullptr;  // of all blocks
  std::size_t blocks = 0;
  double most = 0;                   // 0: the factor is 1
  double* partials = nullptr;        // scratch memory: clip_partials(blocks) values
  std::uint32_t* arrived = nullptr;  // 0 before the first task; each task leaves 0
  Clipping* result = nullptr;
  double unscale = 1;  // gradients are to be multiplied by it: norm and factor are of the products
  Measure measure = Measure::kSquares;
};
std::size_t clip_partials(std::size_t blocks);
void queue_clip(const ClipTask& task, void* stream);

// norms[r · entries + e] = the norm of entry e in row r, for rows of squares. The rows lie one after
// the other; the task uses them as scratch memory.
struct EntryNormsTask {
  const EntryOffsets* places = nullptr;
  std::uint32_t entries = 0;
  std::uint32_t rows = 0;
  std::size_t blocks = 0;  // of a row
  double* first_row = nullptr;
  double* norms = nullptr;
};
void queue_entry_norms(const EntryNormsTask& task, void* stream);

// trusts[e] = the trust in entry e.
struct TrustTask {
  std::uint32_t entries = 0;
  const element::Trust* rules = nullptr;  // by entry
  const double* weights = nullptr;        // norms, by entry
  const double* others = nullptr;         // norms of gradients or changes, by entry
  const double* factor = nullptr;         // of `others`; null: 1
  double* trusts = nullptr;
};
void queue_trusts(const TrustTask& task, void* stream);

// flat = 0 + gradient, or flat = flat + gradient, for gradients that are where backward made them.
// A parameter without a gradient counts as zeros. The memory of an entry that is left alone does
// not change.
inline constexpr std::uintptr_t kLeftAlone = 1;  // used as an address that no gradient has
inline const void* left_alone() {
  return reinterpret_cast<const void*>(kLeftAlone);  // NOLINT(performance-no-int-to-ptr)
}
struct GatherTask {
  DeviceRange range;
  const void* const* entries = nullptr;  // by entry, of the range's dtype; null, or left_alone()
  void* flat = nullptr;
  DType flat_dtype = DType::kFloat32;  // the range's, or float32 for half types
  bool wide = false;                   // `flat` has the wide layout, for any dtype of the range
  bool adds = false;
};
void queue_gather(const GatherTask& task, void* stream);

}  // namespace lockstep::flat

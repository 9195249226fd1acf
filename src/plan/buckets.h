// Where the layout is cut into buckets: neighbouring entries that are reduced together.
//
// A bucket is only a schedule; it moves no memory. Entries are taken in layout order. Each is added
// to the bucket, and then the bucket is closed if it has reached its limit. So a bucket can be
// larger than its limit by up to one parameter. PyTorch's DDP does the same, with the same limits:
// a small first bucket lets the reduction begin early. For a model of one dtype whose gradients
// arrive in layout order, the buckets are those of DDP after its first iteration.
//
// Differences from DDP:
//   dtypes   DDP collects the parameters of each dtype over the whole model and applies the limits
//            once per dtype. Here a bucket is contiguous memory, so a change of dtype closes it. A
//            model that alternates dtypes gets more and smaller buckets
//   order    DDP makes new buckets after the first iteration, in the order in which gradients
//            arrived. Here the order is always that of the layout
//   sparse   gradients are dense; embeddings have no buckets of their own
#pragma once

#include <lockstep/buffer.h>

#include <cstddef>
#include <vector>

#include "plan/layout.h"

namespace lockstep::plan {

struct BucketOptions {
  // How fast it comes; the result does not depend on it. Smaller buckets overlap more with
  // backward; larger buckets need fewer messages. With zero, every parameter has its own bucket.
  std::size_t first_limit_bytes = std::size_t{1} << 20;
  std::size_t limit_bytes = std::size_t{25} << 20;
};

struct Bucket {
  std::size_t first_entry = 0;
  std::size_t entries = 0;
  DType dtype = DType::kFloat32;
  std::size_t offset = 0;         // bytes from the start of the layout
  std::size_t bytes = 0;          // of memory: from the first element to the last, gaps included
  std::size_t payload_bytes = 0;  // of elements, without gaps: compared with the limit

  std::size_t count() const { return bytes / size_of(dtype); }  // elements to reduce, gaps included
};

// Cuts a layout. Every entry is in exactly one bucket; buckets are in layout order.
std::vector<Bucket> plan_buckets(const Layout& layout, const BucketOptions& options = {});

// A part of a bucket, which may be in memory of its own and is reduced from there.
struct Lot {
  std::size_t first_entry = 0;
  std::size_t entries = 0;
  bool alone = false;     // one entry, from its first element to its last
  std::size_t count = 0;  // elements to reduce; gaps included, except if it is alone

  bool operator==(const Lot&) const = default;
};

// The parts of a bucket, in layout order. An entry of at least `alone_bytes` is a part alone.
// Neighbours with fewer bytes form one part together, up to the next multiple of kEntryAlignment,
// so that the next part begins aligned. The parts depend only on the layout, not on where a worker
// has its gradients. So all workers reduce the same parts.
std::vector<Lot> plan_lots(const Layout& layout, const Bucket& bucket, std::size_t alone_bytes);

// The same buckets in another layout of the same entries, such as the wide layout of their sums.
std::vector<Bucket> in_layout(std::vector<Bucket> buckets, const Layout& layout);

}  // namespace lockstep::plan

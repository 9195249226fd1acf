// Where the layout is cut into buckets: stretches that are reduced together.
//
// A bucket is a schedule and moves no memory. Entries are taken in layout order; each is added
// first, and then the bucket is closed if it holds at least its limit, so a bucket overshoots by up
// to one parameter. As in PyTorch's DDP, with its limits: a small first bucket lets the reduction
// begin early. For a model of one dtype whose gradients arrive in layout order the cuts are those
// of DDP after its first iteration.
//
// Where it differs from DDP:
//   dtypes   DDP collects the parameters of each dtype across the whole model and walks the limits
//            once per dtype. Here a bucket is contiguous memory: a change of dtype closes it, and
//            there is one walk. A model that alternates dtypes gets more and smaller buckets
//   order    DDP cuts anew after the first iteration, in the order in which gradients arrived. Here
//            the order is the layout's, from the first step on
//   sparse   gradients are dense; no bucket of their own for embeddings
#pragma once

#include <lockstep/buffer.h>

#include <cstddef>
#include <vector>

#include "plan/layout.h"

namespace lockstep::plan {

struct BucketOptions {
  // How fast it comes; the result does not depend on either. Smaller overlaps more with backward,
  // larger sends fewer messages. Zero gives every parameter a bucket of its own.
  std::size_t first_limit_bytes = std::size_t{1} << 20;
  std::size_t limit_bytes = std::size_t{25} << 20;
};

struct Bucket {
  std::size_t first_entry = 0;
  std::size_t entries = 0;
  DType dtype = DType::kFloat32;
  std::size_t offset = 0;         // bytes from the start of the layout
  std::size_t bytes = 0;          // of memory: from the first element to the last, gaps included
  std::size_t payload_bytes = 0;  // of elements: what is held against the limit

  std::size_t count() const { return bytes / size_of(dtype); }  // elements to reduce, gaps included
};

// Every entry lies in exactly one bucket; buckets are in layout order.
std::vector<Bucket> plan_buckets(const Layout& layout, const BucketOptions& options = {});

// What of a bucket can be reduced from memory of its own.
struct Lot {
  std::size_t first_entry = 0;
  std::size_t entries = 0;
  bool alone = false;     // one entry, from its first element to its last
  std::size_t count = 0;  // elements to reduce, gaps included; without those, where it is alone

  bool operator==(const Lot&) const = default;
};

// An entry of at least `alone_bytes` is a lot of its own; neighbours that have fewer are one, up to the next multiple of
// kEntryAlignment, so that what comes after it is cut where it is aligned. In layout order. Only the layout says so,
// wherever a worker has its gradients: all reduce the same lots.
std::vector<Lot> plan_lots(const Layout& layout, const Bucket& bucket, std::size_t alone_bytes);

// The same buckets where their entries lie in another layout of them, such as that of their sums.
std::vector<Bucket> in_layout(std::vector<Bucket> buckets, const Layout& layout);

}  // namespace lockstep::plan

#include "plan/buckets.h"

#include "base/check.h"

namespace lockstep::plan {
namespace {

Bucket open_at(const std::vector<Entry>& entries, std::size_t index) {
  return {.first_entry = index,
          .entries = 0,
          .dtype = entries[index].dtype,
          .offset = entries[index].offset,
          .bytes = 0,
          .payload_bytes = 0};
}

void add(Bucket& bucket, const Entry& entry) {
  ++bucket.entries;
  bucket.bytes = entry.offset + entry.bytes() - bucket.offset;
  bucket.payload_bytes += entry.bytes();
}

}  // namespace

std::vector<Bucket> plan_buckets(const Layout& layout, const BucketOptions& options) {
  const std::vector<Entry>& entries = layout.entries();
  std::vector<Bucket> buckets;
  bool closed = true;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (closed || buckets.back().dtype != entries[i].dtype) buckets.push_back(open_at(entries, i));
    add(buckets.back(), entries[i]);
    const std::size_t limit = buckets.size() == 1 ? options.first_limit_bytes : options.limit_bytes;
    closed = buckets.back().payload_bytes >= limit;
  }
  return buckets;
}

std::vector<Bucket> in_layout(std::vector<Bucket> buckets, const Layout& layout) {
  for (Bucket& bucket : buckets) {
    const std::size_t end = bucket.first_entry + bucket.entries;
    LOCKSTEP_CHECK(end <= layout.entries().size(), "the layouts have the same entries");
    bucket = open_at(layout.entries(), bucket.first_entry);
    while (bucket.first_entry + bucket.entries < end)
      add(bucket, layout.entries()[bucket.first_entry + bucket.entries]);
  }
  return buckets;
}

}  // namespace lockstep::plan

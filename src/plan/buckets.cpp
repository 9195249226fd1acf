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

std::vector<Lot> plan_lots(const Layout& layout, const Bucket& bucket, std::size_t alone_bytes) {
  const std::size_t end = bucket.first_entry + bucket.entries;
  LOCKSTEP_CHECK(end <= layout.entries().size(), "a bucket lies in its layout");
  std::vector<Lot> lots;
  for (std::size_t i = bucket.first_entry; i < end; ++i) {
    const Entry& entry = layout.entries()[i];
    if (entry.bytes() >= alone_bytes) {
      lots.push_back({i, 1, true, entry.count});
      continue;
    }
    if (lots.empty() || lots.back().alone) lots.push_back({i, 0, false, 0});
    Lot& lot = lots.back();
    ++lot.entries;
    const std::size_t bytes =
        entry.offset + entry.bytes() - layout.entries()[lot.first_entry].offset;
    lot.count =
        (bytes + kEntryAlignment - 1) / kEntryAlignment * kEntryAlignment / size_of(bucket.dtype);
  }
  return lots;
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

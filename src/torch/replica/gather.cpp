#include "torch/replica/device_gradients.h"

#include <algorithm>

#include "flat/device_tables.h"
#include "torch/device/upload.h"

namespace lockstep::replica {
namespace {

class QueuedGather : public Gather {
 public:
  QueuedGather(const plan::Layout& layout, const plan::Pieces& pieces, Device device)
      : device_(device),
        tables_(layout, pieces),
        device_tables_(tables_),
        pointers_(layout.entries().size()),
        table_(device) {}

  void run(const plan::Bucket& bucket, const std::vector<const void*>& gradients, const Into& into,
           bool adds) override {
    std::copy(gradients.begin(), gradients.end(),
              pointers_.begin() + static_cast<std::ptrdiff_t>(bucket.first_entry));
    table_.set(pointers_);
    flat::GatherTask task;
    task.range = {device_tables_.view(), tables_.of_entries(bucket.first_entry, bucket.entries),
                  bucket.dtype};
    task.entries = static_cast<const void* const*>(table_.data());
    task.flat = into.memory.data();
    task.flat_dtype = into.dtype;
    task.wide = into.wide;
    task.adds = adds;
    flat::queue_gather(task, device::current_stream(device_));
  }

 private:
  Device device_;
  flat::ChunkTables tables_;
  flat::DeviceTables device_tables_;
  std::vector<const void*> pointers_;  // by entry; of other buckets, those of the last time
  device::SmallTable table_;
};

}  // namespace

std::shared_ptr<Gather> make_gather(const plan::Layout& layout, const plan::Pieces& pieces,
                                    Device device) {
  return std::make_shared<QueuedGather>(layout, pieces, device);
}

}  // namespace lockstep::replica

#include "formats/cifar10.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include "base/files.h"
#include "formats/file_bytes.h"

namespace lockstep::formats {
namespace {

constexpr std::size_t kRecordBytes = 1 + kCifarImageBytes;
// A published batch has 10,000 records. A file with more than a hundred times as many is refused.
constexpr std::size_t kMostBatchBytes = 1'000'000 * kRecordBytes;

void append_cifar10(ByteSpan bytes, const std::string& file, Cifar10& out) {
  if (bytes.empty() || bytes.size() % kRecordBytes != 0) {
    refuse(file,
           fmt::format("has {} bytes, which is not a number of CIFAR-10 records of {} bytes",
                       bytes.size(), kRecordBytes),
           "take the binary version of CIFAR-10, and copy or download it again");
  }
  const std::size_t records = bytes.size() / kRecordBytes;
  out.images.reserve(out.images.size() + records * kCifarImageBytes);
  out.labels.reserve(out.labels.size() + records);
  for (std::size_t i = 0; i < records; ++i) {
    const ByteSpan record = bytes.subspan(i * kRecordBytes, kRecordBytes);
    if (record[0] >= kCifarClasses) {
      refuse(file, fmt::format("record {} has label {}, above {}", i, record[0], kCifarClasses - 1),
             "take the binary version of CIFAR-10, and copy or download it again");
    }
    out.labels.push_back(record[0]);
    out.images.insert(out.images.end(), record.begin() + 1, record.end());
  }
}

}  // namespace

Cifar10 parse_cifar10(ByteSpan bytes, const std::string& file) {
  Cifar10 out;
  append_cifar10(bytes, file, out);
  return out;
}

Cifar10 load_cifar10(const std::string& directory, const std::string& split) {
  if (split != "train" && split != "test") {
    throw BadInput(fmt::format("there is no split '{}' of CIFAR-10; say train or test", split));
  }
  const std::string inner = base::join_path(directory, "cifar-10-batches-bin");
  const std::string& folder = base::is_directory(inner) ? inner : directory;
  std::vector<std::string> names = {"test_batch.bin"};
  if (split == "train") {
    names.clear();
    for (int batch = 1; batch <= 5; ++batch)
      names.push_back(fmt::format("data_batch_{}.bin", batch));
  }
  Cifar10 out;
  for (const std::string& name : names) {
    const std::string path = base::join_path(folder, name);
    append_cifar10(read_inflated(path, kMostBatchBytes), path, out);
  }
  return out;
}

}  // namespace lockstep::formats

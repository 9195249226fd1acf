#include "formats/idx.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>

#include "base/files.h"
#include "formats/file_bytes.h"

namespace lockstep::formats {
namespace {

constexpr std::uint8_t kUnsignedByte = 0x08;
constexpr std::size_t kMostDimensions = 8;

void check_idx_head(ByteSpan bytes, const std::string& file) {
  if (bytes.size() < 4) refuse(file, "is too short for an IDX file", kFetchAgain);
  if (bytes[0] != 0 || bytes[1] != 0) {
    refuse(file, "is not an IDX file: it does not begin with two zero bytes",
           "name a file such as train-images-idx3-ubyte.gz");
  }
  if (bytes[2] != kUnsignedByte) {
    refuse(file, fmt::format("holds elements of IDX type {}", bytes[2]),
           "convert them to type 8, unsigned bytes");
  }
  if (bytes[3] < 1 || bytes[3] > kMostDimensions) {
    refuse(file, fmt::format("says it has {} dimensions, not 1 to {}", bytes[3], kMostDimensions),
           kFetchAgain);
  }
}

std::uint32_t big_endian(ByteSpan bytes) {
  return static_cast<std::uint32_t>(bytes[0]) << 24 | static_cast<std::uint32_t>(bytes[1]) << 16 |
         static_cast<std::uint32_t>(bytes[2]) << 8 | static_cast<std::uint32_t>(bytes[3]);
}

// The first of the usual names that exists.
std::string find_idx(const std::string& directory, const std::string& stem, int dimensions) {
  for (const char* joint : {"-", "."}) {
    for (const char* end : {"", ".gz"}) {
      std::string path = base::join_path(
          directory, fmt::format("{}{}idx{}-ubyte{}", stem, joint, dimensions, end));
      if (base::exists(path)) return path;
    }
  }
  refuse(directory,
         fmt::format("has no {}-idx{}-ubyte nor {}-idx{}-ubyte.gz", stem, dimensions, stem,
                     dimensions),
         "name the directory that holds the data set");
}

IdxArray load_idx(const std::string& path, std::size_t dimensions) {
  IdxArray array = parse_idx(read_inflated(path), path);
  if (array.shape.size() != dimensions) {
    refuse(path, fmt::format("has {} dimensions instead of {}", array.shape.size(), dimensions),
           "check that images and labels are not exchanged");
  }
  if (array.data.empty()) refuse(path, "holds nothing", kFetchAgain);
  return array;
}

}  // namespace

IdxArray parse_idx(ByteSpan bytes, const std::string& file) {
  check_idx_head(bytes, file);
  const std::size_t dimensions = bytes[3];
  ByteSpan rest = bytes.subspan(4);
  if (rest.size() < dimensions * 4) refuse(file, "ends inside its IDX header", kFetchAgain);
  IdxArray array;
  std::uint64_t elements = 1;
  bool overflow = false;
  for (std::size_t i = 0; i < dimensions; ++i, rest = rest.subspan(4)) {
    const std::uint32_t size = big_endian(rest);
    array.shape.push_back(size);
    overflow = overflow || __builtin_mul_overflow(elements, std::uint64_t{size}, &elements);
  }
  rest = bytes.subspan(4 + 4 * dimensions);
  if (overflow || elements > rest.size()) {
    refuse(file,
           fmt::format("is cut short: its header says {}, but only {} bytes follow",
                       overflow ? "more than any file holds" : fmt::format("{} bytes", elements),
                       rest.size()),
           kFetchAgain);
  }
  if (elements < rest.size()) {
    refuse(file,
           fmt::format("has {} bytes after its {} elements", rest.size() - elements, elements),
           kFetchAgain);
  }
  array.data.assign(rest.begin(), rest.end());
  return array;
}

IdxPair load_idx_pair(const std::string& directory, const std::string& split) {
  if (split != "train" && split != "t10k") {
    throw BadInput(fmt::format("there is no split '{}' of MNIST data; say train or t10k", split));
  }
  const std::string images = find_idx(directory, split + "-images", 3);
  const std::string labels = find_idx(directory, split + "-labels", 1);
  IdxPair pair{load_idx(images, 3), load_idx(labels, 1)};
  if (pair.images.shape[0] != pair.labels.shape[0]) {
    refuse(labels,
           fmt::format("has {} labels for the {} images of {}", pair.labels.shape[0],
                       pair.images.shape[0], images),
           "take both files from one data set");
  }
  pair.classes = 1 + *std::max_element(pair.labels.data.begin(), pair.labels.data.end());
  return pair;
}

}  // namespace lockstep::formats

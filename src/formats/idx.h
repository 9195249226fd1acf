// IDX, the format of MNIST and its family (Fashion-MNIST, KMNIST, EMNIST): two zero bytes, the type
// of the elements, the number of dimensions, each dimension as a big-endian 32-bit number, then the
// elements, last dimension fastest. Only unsigned bytes (type 8) are read.
//
// Failure: BadInput naming the file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/file_bytes.h"

namespace lockstep::formats {

struct IdxArray {
  std::vector<std::int64_t> shape;
  ByteVector data;
};

// `file` is for messages.
IdxArray parse_idx(ByteSpan bytes, const std::string& file);

struct IdxPair {
  IdxArray images;  // [n, height, width], n ≥ 1
  IdxArray labels;  // [n]
  int classes = 0;  // the highest label and one
};

// Images and labels of one split, "train" or "t10k", from a directory with the files' usual names,
// gzip or not, such as train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz.
IdxPair load_idx_pair(const std::string& directory, const std::string& split);

}  // namespace lockstep::formats

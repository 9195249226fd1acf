// IDX, the format of MNIST and its family (Fashion-MNIST, KMNIST, EMNIST). A file has two zero
// bytes, the type of the elements, the number of dimensions, each dimension as a big-endian 32-bit
// number, then the elements; the last dimension changes fastest. Only unsigned bytes (type 8) are
// read.
//
// Failure: BadInput with the name of the file.
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

// `file` is the name in messages.
IdxArray parse_idx(ByteSpan bytes, const std::string& file);

struct IdxPair {
  IdxArray images;  // [n, height, width], n ≥ 1
  IdxArray labels;  // [n]
  int classes = 0;  // the highest label + 1
};

// Images and labels of one split, "train" or "t10k", from a directory with the files' usual names,
// gzip or not, such as train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz.
IdxPair load_idx_pair(const std::string& directory, const std::string& split);

}  // namespace lockstep::formats

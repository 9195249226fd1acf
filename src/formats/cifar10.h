// CIFAR-10, binary version. A record is one byte for the label (0 to 9) and 3072 bytes for the
// image: 32×32 red values, then green, then blue.
//
// Failure: BadInput with the name of the file.
#pragma once

#include <string>

#include "formats/file_bytes.h"

namespace lockstep::formats {

inline constexpr std::size_t kCifarImageBytes = std::size_t{3} * 32 * 32;
inline constexpr int kCifarClasses = 10;

struct Cifar10 {
  ByteVector images;  // [n, 3, 32, 32]
  ByteVector labels;  // [n]
};

// `file` is the name in messages.
Cifar10 parse_cifar10(ByteSpan bytes, const std::string& file);

// The split "train" (data_batch_1.bin … data_batch_5.bin) or "test" (test_batch.bin) of a directory
// or of the cifar-10-batches-bin in it.
Cifar10 load_cifar10(const std::string& directory, const std::string& split);

}  // namespace lockstep::formats

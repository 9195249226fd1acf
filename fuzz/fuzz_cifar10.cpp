// CIFAR-10: an image to every label, and every label one of ten.
#include "formats/cifar10.h"
#include "fuzz_formats.h"

using lockstep::fuzz::kFile;
using lockstep::fuzz::require;
namespace formats = lockstep::formats;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::fuzz::only_bad_input([&] {
    const auto read = formats::parse_cifar10({data, size}, kFile);
    require(read.images.size() == read.labels.size() * formats::kCifarImageBytes, "images");
    for (const auto label : read.labels) require(label < formats::kCifarClasses, "labels");
  });
  return 0;
}

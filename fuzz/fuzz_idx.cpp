// Files of the MNIST family: what is read has as many elements as its shape says.
#include "formats/idx.h"
#include "fuzz_formats.h"

using lockstep::fuzz::kFile;
using lockstep::fuzz::require;
namespace formats = lockstep::formats;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::fuzz::only_bad_input([&] {
    const auto array = formats::parse_idx({data, size}, kFile);
    std::uint64_t elements = 1;
    for (const std::int64_t length : array.shape) elements *= static_cast<std::uint64_t>(length);
    require(elements == array.data.size(), "an array has the elements of its shape");
  });
  return 0;
}

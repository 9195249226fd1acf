// Damaged gzip: never more comes out than the limit.
#include "fuzz_formats.h"

using lockstep::fuzz::kFile;
using lockstep::fuzz::require;
namespace formats = lockstep::formats;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  lockstep::fuzz::only_bad_input([&] {
    require(formats::inflate_gzip({data, size}, kFile, kMost).size() <= kMost, "the limit holds");
  });
  return 0;
}

// Token files: the layout that is found lies inside the file.
#include "formats/token_file.h"
#include "fuzz_formats.h"

#include <algorithm>

using lockstep::fuzz::kFile;
using lockstep::fuzz::require;
namespace formats = lockstep::formats;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::fuzz::only_bad_input([&] {
    const std::size_t head = std::min(size, formats::kTokenHeaderBytes);
    const int width = size % 3 == 0 ? 4 : 2;
    const auto layout = formats::parse_token_layout({data, head}, size, width, kFile);
    require(layout.token_bytes == 2 || layout.token_bytes == 4, "width");
    require(layout.tokens >= 0 && layout.first_byte >= 0, "counts");
    require(
        layout.first_byte + layout.tokens * layout.token_bytes == static_cast<std::int64_t>(size),
        "the tokens are the rest of the file");
  });
  return 0;
}

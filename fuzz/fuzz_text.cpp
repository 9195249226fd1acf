// Text: tokens stand for what was read.
#include "formats/text.h"
#include "fuzz_formats.h"

using lockstep::fuzz::kFile;
using lockstep::fuzz::require;
namespace formats = lockstep::formats;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::fuzz::only_bad_input([&] {
    const auto read = formats::parse_text({data, size}, kFile, 2);
    const std::string_view text = lockstep::fuzz::as_text(data, size);
    require(formats::decode_text(read.vocabulary, read.tokens) == text, "decoding");
    require(formats::encode_text(read.vocabulary, text) == read.tokens, "encoding");
  });
  return 0;
}

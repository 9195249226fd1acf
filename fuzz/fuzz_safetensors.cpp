// Safetensors: what is read is written, and read again the same.
#include <algorithm>

#include "formats/safetensors.h"
#include "fuzz_formats.h"

using lockstep::fuzz::kFile;
using lockstep::fuzz::require;
namespace formats = lockstep::formats;

bool same(const formats::TensorView& a, const formats::TensorView& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape &&
         std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end());
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::fuzz::only_bad_input([&] {
    const auto first = formats::parse_safetensors(std::as_bytes(std::span(data, size)), kFile);
    std::string file;
    formats::write_safetensors([&](std::string_view part) { file += part; }, first.tensors,
                               first.metadata);
    const auto second =
        formats::parse_safetensors(std::as_bytes(std::span(file.data(), file.size())), kFile);
    require(std::equal(first.tensors.begin(), first.tensors.end(), second.tensors.begin(),
                       second.tensors.end(), same),
            "tensors survive");
    auto metadata = first.metadata;
    for (const auto key : {formats::kDataHashKey, formats::kHeaderHashKey, formats::kHashesKey}) {
      metadata[std::string(key)] = second.metadata.at(std::string(key));
    }
    require(metadata == second.metadata, "metadata survives");
    require(second.header_is_hashed, "what is written has hashes");
    formats::verify_safetensors(second, "what was written");
    formats::verify_safetensors(first, kFile);
  });
  return 0;
}

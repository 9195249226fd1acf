// The JSON header of a safetensors file, as it is written there.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors.h"

namespace lockstep::formats {

struct HeaderEntry {
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, HeaderEntry> tensors;
  Metadata metadata;
};

// The number of bytes of a tensor with this dtype and shape; nothing if it does not fit into 64
// bits.
std::optional<std::uint64_t> length_of(Dtype dtype, const std::vector<std::int64_t>& shape);

// Checks only the form: each key once, types, known dtypes. It does not check offsets and lengths.
// Throws BadInput.
SafetensorsHeader parse_header(std::string_view json, const std::string& file);

// JSON, with spaces at the end up to a multiple of 8 bytes. Throws BadInput for text that is not
// UTF-8.
std::string format_header(const SafetensorsHeader& header);

}  // namespace lockstep::formats

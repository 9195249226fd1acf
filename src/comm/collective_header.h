// What the header of a collective says of its data.
#pragma once

#include <lockstep/buffer.h>

#include <cstdint>
#include <vector>

#include "base/hash.h"
#include "comm/core/header.h"

namespace lockstep::comm {

inline Header header_of(Kind kind, const Buffer& data) {
  Header header;
  header.kind = kind;
  header.dtype = data.dtype;
  header.count = data.count;
  return header;
}

// The counts of a cut as one number, so that workers with different cuts find out.
inline std::uint32_t digest(const std::vector<std::size_t>& counts) {
  std::uint64_t mixed = counts.size();
  for (const std::size_t count : counts) mixed = base::mix64(mixed ^ count);
  return static_cast<std::uint32_t>(mixed);
}

}  // namespace lockstep::comm

// What travels as one message of MPI between two workers: a header, and its bytes behind it. Kinds
// as in core/posts.h, and
//
//   kNotice    why the sender ends (core/failure.h)
//   kReceipt   the answer to kNotice: it has arrived, and so has everything that was sent before
//   kBye       the last frame to the receiver, who answers with its own last one. So nothing is
//              left in MPI when both have gone
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/core/posts.h"

namespace lockstep::comm {

struct MpiFrame {
  enum class Kind : std::uint32_t {
    kMessage = 1,
    kAsk = 2,
    kGrant = 3,
    kData = 4,
    kNotice = 5,
    kReceipt = 6,
    kBye = 7,
  };
  static constexpr std::uint32_t kMark = 0x4c4b4d31;  // "1MKL"; of another build, another one

  std::uint32_t mark = kMark;
  Kind kind = Kind::kMessage;
  std::uint64_t slot = 0;
  std::uint64_t number = 0;  // of the message; its sender counts
  std::uint64_t total = 0;   // bytes of the whole message
};
static_assert(sizeof(MpiFrame) == 32);

// The most bytes behind a header. They stay in a cache between the copy and MPI.
inline constexpr std::size_t kMostMpiData = std::size_t{256} << 10;

}  // namespace lockstep::comm

// What a broken peer may leave in a ring of shared memory: any bytes, any positions. The reader refuses with
// Mismatch, or gives frames that lie within the ring.
#include <lockstep/errors.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "comm/shm/ring.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::comm;  // NOLINT
  constexpr std::uint32_t kRingBytes = 512;
  static const Segment segment(lockstep::Arena::create(Segment::bytes_for(1, kRingBytes)), 1,
                               kRingBytes);
  if (size < 16) return 0;
  std::uint64_t read = 0;
  std::uint64_t written = 0;
  std::memcpy(&read, data, 8);
  std::memcpy(&written, data + 8, 8);
  std::memset(segment.ring(0), 0, kRingBytes);
  std::memcpy(segment.ring(0), data + 16, std::min<std::size_t>(size - 16, kRingBytes));
  segment.positions(0).read.store(read);
  // Near each other as often as not, so that frames are found.
  segment.positions(0).written.store((data[8] & 1) != 0 ? written
                                                        : read + written % (kRingBytes + 64));
  RingReader reader(segment, 0);
  try {
    while (const auto frame = reader.peek()) {
      if (frame->bytes > kRingBytes || frame->bytes > frame->total) std::abort();
      std::vector<std::byte> bytes(frame->bytes);
      reader.take(*frame, bytes.data());
    }
  } catch (const lockstep::Mismatch&) {
  }
  return 0;
}

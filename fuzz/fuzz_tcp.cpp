// What comes over a socket of the engine tcp: places, the proof of a pair, headers and frames. The
// first byte chooses.
#include <sys/socket.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/fd.h"
#include "base/pair_proof.h"
#include "comm/tcp/forming.h"
#include "comm/tcp/tcp_stream.h"

namespace {

using namespace lockstep::comm;
using lockstep::base::PairProof;
using lockstep::base::PairWorld;

void place(std::string_view bytes) {
  if (const auto decoded = decode_place(bytes))
    LOCKSTEP_CHECK(encode(*decoded) == bytes, "a place is encoded in one way");
}

// A stranger never opens: it does not know the secret.
void proof(std::string_view bytes, bool calls) {
  const PairWorld world{"name", "secret", 1, 3};
  PairProof pair = calls ? PairProof::caller(world, 0) : PairProof::listener(world);
  while (pair.wants() > 0 && bytes.size() >= pair.wants()) {
    const std::size_t wanted = pair.wants();
    pair.receive(bytes.substr(0, wanted));
    bytes.remove_prefix(wanted);
  }
  LOCKSTEP_CHECK(pair.state() != PairProof::State::kOpen, "nobody guesses a digest");
}

struct Counter : FrameSink {
  std::vector<std::byte> memory;
  std::byte* begin(const TcpFrame& frame) override {
    LOCKSTEP_CHECK(frame.bytes <= std::max(kMostData, kTcpShortBytesBetweenHosts),
                   "a frame has bounds");
    memory.resize(frame.bytes);
    return frame.number % 3 == 0 ? nullptr : memory.data();
  }
  void end(const TcpFrame& frame) override {
    LOCKSTEP_CHECK(decode_tcp_header(encode(frame)) == frame, "what was taken is a frame");
  }
};

// In two parts, so that a frame is cut at any place.
void frames(std::string_view bytes, bool tagged) {
  int both[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, both) != 0) return;
  const lockstep::base::Fd to(both[0]);
  const lockstep::base::Fd from(both[1]);
  std::optional<Tagger> tagger;
  if (tagged) tagger.emplace(std::string(kTagKeyBytes, 'k'));
  FrameReader reader(from.get(), std::move(tagger));
  Counter counter;
  const std::size_t cut = bytes.size() / 3;
  for (const std::string_view part : {bytes.substr(0, cut), bytes.substr(cut)}) {
    if (::send(to.get(), part.data(), part.size(), MSG_NOSIGNAL) < 0) return;
    for (int i = 0; i < 4; ++i) {
      const auto result = reader.read(counter);
      if (result == FrameReader::Result::kBroken || result == FrameReader::Result::kForged) return;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0:
      place(bytes);
      break;
    case 1:
      proof(bytes, true);
      break;
    case 2:
      proof(bytes, false);
      break;
    case 3:
      frames(bytes, false);
      break;
    default:
      frames(bytes, true);
  }
  return 0;
}

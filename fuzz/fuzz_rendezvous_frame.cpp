// A stream of frames, cut and damaged as the input says. Its first byte is where the stream is cut,
// the next two which byte is altered and how; the rest are payloads, divided by 0xff.
#include <vector>

#include "base/bytes.h"
#include "control/rendezvous/frame.h"
#include "fuzz.h"

using lockstep::control::Direction;
using lockstep::control::FrameOpener;
using lockstep::control::FrameSealer;
using lockstep::fuzz::require;

namespace {

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == '\xff') {
      parts.emplace_back();
    } else {
      parts.back().push_back(c);
    }
  }
  return parts;
}

std::vector<std::string> open_all(std::string_view stream, std::size_t at_once) {
  FrameOpener opener("key", Direction::kToServer);
  std::vector<std::string> got;
  for (std::size_t i = 0; i < stream.size(); i += at_once) {
    opener.push(stream.substr(i, at_once));
    while (auto payload = opener.next()) got.push_back(*payload);
  }
  return got;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::base::ByteReader input(lockstep::fuzz::as_text(data, size));
  const std::size_t at_once = input.get<std::uint8_t>() + std::size_t{1};
  const auto place = input.get<std::uint8_t>();
  const auto damage = input.get<std::uint8_t>();
  if (!input.ok()) return 0;
  const std::string_view rest = lockstep::fuzz::as_text(data + 3, size - 3);

  // Bytes of a stranger, as they come.
  require(open_all(rest, at_once).empty(), "nobody without the key makes a frame");

  const std::vector<std::string> payloads = split(rest);
  FrameSealer sealer("key", Direction::kToServer);
  std::string stream;
  for (const std::string& payload : payloads) stream += sealer.seal(payload);
  require(open_all(stream, at_once) == payloads, "what was sealed is opened, however it is cut");
  if (damage == 0) return 0;
  stream[place % stream.size()] = static_cast<char>(stream[place % stream.size()] ^ damage);
  const auto got = open_all(stream, at_once);
  require(got.size() < payloads.size(), "a damaged frame is not opened");
  for (std::size_t i = 0; i < got.size(); ++i) {
    require(got[i] == payloads[i], "what came before the damage is genuine");
  }
  return 0;
}

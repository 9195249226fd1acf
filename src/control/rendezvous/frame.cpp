#include "control/rendezvous/frame.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "control/rendezvous/message.h"

namespace lockstep::control {
namespace {

constexpr std::size_t kLengthBytes = 4;

std::string tag_of(const std::string& key, Direction direction, std::uint64_t counter,
                   std::string_view payload) {
  base::ByteWriter covered;
  covered.put(static_cast<std::uint8_t>(direction)).put(counter).put_text(payload);
  return base::hmac_sha256(key, covered.bytes()).substr(0, kTagBytes);
}

}  // namespace

std::string FrameSealer::seal(std::string_view payload) {
  LOCKSTEP_CHECK(payload.size() <= kMostFrameBytes, "a message fits into a frame");
  base::ByteWriter frame;
  frame.put_text(payload).put_raw(tag_of(key_, direction_, counter_++, payload));
  return frame.take();
}

void FrameOpener::push(std::string_view bytes) {
  if (broken_) return;
  buffer_.erase(0, taken_);
  taken_ = 0;
  buffer_.append(bytes);
}

std::optional<std::string> FrameOpener::next() {
  if (broken_) return std::nullopt;
  base::ByteReader in(std::string_view(buffer_).substr(taken_));
  const auto length = in.get<std::uint32_t>();
  if (!in.ok()) return std::nullopt;
  if (length > kMostFrameBytes) {
    broken_ = true;
    return std::nullopt;
  }
  const std::string_view payload = in.get_raw(length);
  const std::string_view tag = in.get_raw(kTagBytes);
  if (!in.ok()) return std::nullopt;
  if (!base::equal_secrets(tag, tag_of(key_, direction_, counter_, payload))) {
    broken_ = true;
    return std::nullopt;
  }
  ++counter_;
  taken_ += kLengthBytes + length + kTagBytes;
  return std::string(payload);
}

}  // namespace lockstep::control

// Frames: how messages follow each other on a connection once both sides know the session's key.
//
//   length   32 bits, little-endian, of the payload; at most kMostFrameBytes
//   payload
//   tag      the first 16 bytes of HMAC-SHA256(key, direction, counter, length, payload)
//
// The counter starts at 0 in each direction and is not sent. So a frame that was dropped, repeated,
// moved, sent back or altered does not have the tag that is expected next, and ends the connection.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::control {

inline constexpr std::size_t kTagBytes = 16;

enum class Direction : std::uint8_t { kToServer = 1, kToClient = 2 };

// Makes the frames of one direction.
class FrameSealer {
 public:
  FrameSealer(std::string key, Direction direction) : key_(std::move(key)), direction_(direction) {}

  std::string seal(std::string_view payload);

 private:
  std::string key_;
  Direction direction_;
  std::uint64_t counter_ = 0;
};

// Takes the frames of one direction apart, from bytes as they come. Holds at most one frame of the
// largest size and what one push() brought.
class FrameOpener {
 public:
  FrameOpener(std::string key, Direction direction) : key_(std::move(key)), direction_(direction) {}

  void push(std::string_view bytes);

  // The next whole payload; nothing while it is incomplete, and nothing ever after broken().
  std::optional<std::string> next();

  bool broken() const { return broken_; }

 private:
  std::string key_;
  Direction direction_;
  std::uint64_t counter_ = 0;
  std::string buffer_;
  std::size_t taken_ = 0;  // of buffer_, by frames that were given out
  bool broken_ = false;
};

}  // namespace lockstep::control

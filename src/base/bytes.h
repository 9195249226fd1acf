// Reading and writing plain values as little-endian bytes, for everything that crosses a process.
//
// ByteReader never reads past its end: the first short read makes it bad, every later one returns
// zero, and the caller asks ok() once at the end. That makes a parser of hostile bytes a straight
// line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace lockstep::base {

class ByteWriter {
 public:
  template <typename T>
  requires std::is_integral_v<T> ByteWriter& put(T value) {
    auto bits = static_cast<std::make_unsigned_t<T>>(value);
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<char>(bits & 0xff));
      if constexpr (sizeof(T) > 1) bits >>= 8;
    }
    return *this;
  }
  // The bytes alone; the reader must know how many.
  ByteWriter& put_raw(std::string_view text) {
    bytes_.append(text);
    return *this;
  }
  // A 32-bit length, then the bytes.
  ByteWriter& put_text(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    return put_raw(text);
  }
  const std::string& bytes() const { return bytes_; }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  requires std::is_integral_v<T> T get() {
    const std::string_view raw = get_raw(sizeof(T));
    std::make_unsigned_t<T> bits = 0;
    for (std::size_t i = 0; i < raw.size(); ++i) {
      bits |= static_cast<std::make_unsigned_t<T>>(
          static_cast<std::make_unsigned_t<T>>(static_cast<unsigned char>(raw[i])) << (8 * i));
    }
    return static_cast<T>(bits);
  }
  std::string_view get_raw(std::size_t count) {
    if (!ok_ || bytes_.size() < count) {
      ok_ = false;
      return {};
    }
    const std::string_view raw = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return raw;
  }
  std::string_view get_text(std::size_t most) {
    const auto count = get<std::uint32_t>();
    if (count > most) ok_ = false;
    return get_raw(ok_ ? count : 0);
  }
  // Everything was there so far.
  bool ok() const { return ok_; }
  // Everything was there, and nothing is left over.
  bool done() const { return ok_ && bytes_.empty(); }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace lockstep::base

// Elements of one type on one device that lie apart, regarded as the one buffer that they make up.
#pragma once

#include <lockstep/buffer.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace lockstep::comm {

// Threads:   a value.
// Blocking:  never.
// Failure:   none.
// Ownership: none, as Buffer.
class Spread {
 public:
  Spread() = default;
  Spread(const Buffer& whole)  // NOLINT: implicit, since most buffers lie in one piece
      : Spread(std::vector<Buffer>{whole}) {}
  explicit Spread(std::vector<Buffer> parts) : parts_(std::move(parts)) {
    for (const Buffer& part : parts_) count_ += part.count;
    if (!parts_.empty()) dtype_ = parts_.front().dtype;
  }

  const std::vector<Buffer>& parts() const { return parts_; }
  DType dtype() const { return dtype_; }
  std::size_t count() const { return count_; }  // elements of all parts
  std::size_t bytes() const { return count_ * size_of(dtype_); }

  // `length` elements from element `first` on: no part of it is empty.
  Spread slice(std::size_t first, std::size_t length) const {
    Spread some;
    some.dtype_ = dtype_;
    some.count_ = length;
    for (const Buffer& part : parts_) {
      const std::size_t skipped = std::min(first, part.count);
      const std::size_t taken = std::min(length, part.count - skipped);
      if (taken > 0) some.parts_.push_back(part.slice(skipped, taken));
      first -= skipped;
      length -= taken;
    }
    return some;
  }

 private:
  std::vector<Buffer> parts_;
  DType dtype_ = DType::kFloat32;
  std::size_t count_ = 0;
};

}  // namespace lockstep::comm

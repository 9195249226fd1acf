// Safetensors, the format of the public hubs: 8 bytes little-endian length of the header, the
// header (JSON: for each tensor its dtype, its shape and where its bytes begin and end; and
// "__metadata__", text by name), then the bytes of the tensors, without holes.
//
// What Lockstep writes is a pure function of what it is given, and carries the SHA-256 of the data
// in the metadata as "lockstep.data_sha256", so that damage is found out. The bytes of tensors with
// larger elements come first, and by name among equals: every tensor is aligned to its elements.
//
// Failure: BadInput naming the file and what is wrong; the reader believes nothing that the header
//          says before it fits the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "torch/formats/file_bytes.h"

namespace lockstep::formats {

enum class Dtype : std::uint8_t { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

std::size_t bytes_of(Dtype dtype);
std::string_view name_of(Dtype dtype);  // "F32", as in the header

struct TensorView {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;   // empty: one element
  std::span<const std::byte> bytes;  // borrowed; in files of others perhaps not aligned
};

using Metadata = std::map<std::string, std::string>;

inline constexpr std::string_view kDataHashKey = "lockstep.data_sha256";

// What a file says.
struct Safetensors {
  std::vector<TensorView> tensors;  // by name
  Metadata metadata;
  std::span<const std::byte> data;  // of all tensors
};

// Spans point into `bytes`; `file` is for messages.
Safetensors parse_safetensors(std::span<const std::byte> bytes, const std::string& file);

// Whether the data is what was written; nothing to hold against where the file has no hash.
void verify_safetensors(const Safetensors& parsed, const std::string& file);

// A file, mapped: tensors come from the disk as they are looked at.
//
// Threads:   reading is free.
// Ownership: views end with it; moving it moves them along.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<TensorView>& tensors() const { return parsed_.tensors; }
  const Metadata& metadata() const { return parsed_.metadata; }

  // Null when there is none of that name.
  const TensorView* find(std::string_view name) const;

  // Reads all data and throws BadInput "is damaged" when it is not what was written.
  void verify() const { verify_safetensors(parsed_, path_); }

 private:
  explicit SafetensorsFile(const std::string& path);

  std::string path_;
  MappedFile file_;
  Safetensors parsed_;
};

// The bytes of a file, part after part, to `sink`. BadInput when a name is there twice or is not
// UTF-8, or when bytes do not fit a shape.
using ByteSink = std::function<void(std::string_view)>;
void write_safetensors(const ByteSink& sink, const std::vector<TensorView>& tensors,
                       Metadata metadata);

// A whole file, or the earlier one (base/atomic_file.h).
void save_safetensors(const std::string& path, const std::vector<TensorView>& tensors,
                      Metadata metadata = {});

}  // namespace lockstep::formats

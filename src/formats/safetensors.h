// Safetensors, the format of the public hubs: 8 bytes little-endian length of the header, the
// header (JSON: for each tensor its dtype, its shape and where its bytes begin and end; and
// "__metadata__", text by name), then the bytes of the tensors, without holes.
//
// What Lockstep writes is a pure function of what it is given. The bytes of tensors with larger
// elements come first, and by name among equals: every tensor is aligned to its elements. Damage is
// found by two hashes in the metadata:
//
//   lockstep.data_sha256     SHA-256 of the data
//   lockstep.header_sha256   SHA-256 of the header as Lockstep would write it without this entry, so
//                            of all other metadata, of names, dtypes, shapes and places, and of the
//                            hash above
//   lockstep.hashes          "data, header": both must be there. Earlier versions wrote the first
//                            hash alone
//
// Failure: BadInput naming the file and what is wrong; the reader believes nothing that the header
//          says before it fits the file and its hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/file_bytes.h"

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

// Ours in the metadata of a file; what a caller gives for them is replaced.
inline constexpr std::string_view kDataHashKey = "lockstep.data_sha256";
inline constexpr std::string_view kHeaderHashKey = "lockstep.header_sha256";
inline constexpr std::string_view kHashesKey = "lockstep.hashes";

// What a file says.
struct Safetensors {
  std::vector<TensorView> tensors;  // by name
  Metadata metadata;
  std::span<const std::byte> data;  // of all tensors
  bool header_is_hashed = false;    // and the hash was right
};

// Spans point into `bytes`; `file` is for messages. BadInput, too, when the header does not have its hash.
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
  bool header_is_hashed() const { return parsed_.header_is_hashed; }

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

// A whole file, or the earlier one, which stays beside it as `kept` if that is a name (base/atomic_file.h).
void save_safetensors(const std::string& path, const std::vector<TensorView>& tensors,
                      Metadata metadata = {}, const std::string& kept = "");

}  // namespace lockstep::formats

// Safetensors, the format of the public hubs. A file has the length of the header (8 bytes,
// little-endian), the header, and the bytes of the tensors without gaps. The header is JSON. It has
// for each tensor its dtype, its shape and the offsets where its bytes begin and end, and
// "__metadata__", texts by name.
//
// The bytes that Lockstep writes depend only on the tensors and the metadata. Tensors with larger
// elements come first; equal ones are sorted by name. So every tensor is aligned to its elements.
// Two hashes in the metadata show damage:
//
//   lockstep.data_sha256     SHA-256 of the data
//   lockstep.header_sha256   SHA-256 of the header as Lockstep would write it without this entry. So
//                            it covers all other metadata, the names, dtypes, shapes and offsets,
//                            and the hash above
//   lockstep.hashes          "data, header": both hashes must be there. Earlier versions wrote only
//                            the first one
//
// Failure: BadInput with the name of the file and what is wrong. The reader uses nothing from the
//          header before the header fits the file and its hash.
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
  std::span<const std::byte> bytes;  // borrowed; files of other programs may not align them
};

using Metadata = std::map<std::string, std::string>;

// Lockstep's own keys in the metadata. Values that a caller gives for them are replaced.
inline constexpr std::string_view kDataHashKey = "lockstep.data_sha256";
inline constexpr std::string_view kHeaderHashKey = "lockstep.header_sha256";
inline constexpr std::string_view kHashesKey = "lockstep.hashes";

// A parsed file.
struct Safetensors {
  std::vector<TensorView> tensors;  // by name
  Metadata metadata;
  std::span<const std::byte> data;  // of all tensors
  bool header_is_hashed = false;    // it has a hash, and the hash was right
};

// Spans point into `bytes`. `file` is the name in messages. Throws BadInput also if the hash of the
// header is wrong.
Safetensors parse_safetensors(std::span<const std::byte> bytes, const std::string& file);

// Throws BadInput if the data are not what was written. A file without a hash always passes.
void verify_safetensors(const Safetensors& parsed, const std::string& file);

// A mapped file. Tensors come from the disk when they are read.
//
// Threads:   any thread may read.
// Ownership: views are valid as long as it lives; they stay valid if it is moved.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<TensorView>& tensors() const { return parsed_.tensors; }
  const Metadata& metadata() const { return parsed_.metadata; }
  bool header_is_hashed() const { return parsed_.header_is_hashed; }

  // Null if there is no tensor of that name.
  const TensorView* find(std::string_view name) const;

  // Reads all data. Throws BadInput "is damaged" if they are not what was written.
  void verify() const { verify_safetensors(parsed_, path_); }

 private:
  explicit SafetensorsFile(const std::string& path);

  std::string path_;
  MappedFile file_;
  Safetensors parsed_;
};

// Gives the bytes of a file to `sink`, part after part. Throws BadInput if a name is there twice or
// is not UTF-8, or if the bytes do not fit the shape.
using ByteSink = std::function<void(std::string_view)>;
void write_safetensors(const ByteSink& sink, const std::vector<TensorView>& tensors,
                       Metadata metadata);

// Writes a file. After a crash the path has the whole new file or the whole earlier one. `began` is
// called when the first tensor is written; it may be empty.
void save_safetensors(const std::string& path, const std::vector<TensorView>& tensors,
                      Metadata metadata = {}, const std::function<void()>& began = {});

}  // namespace lockstep::formats

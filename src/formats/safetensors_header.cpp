#include "formats/safetensors_header.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "formats/file_bytes.h"

namespace lockstep::formats {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadataKey = "__metadata__";

struct DtypeRow {
  Dtype dtype;
  std::string_view name;
  std::size_t bytes;
};
constexpr std::array<DtypeRow, 10> kDtypes = {{{Dtype::kF64, "F64", 8},
                                               {Dtype::kF32, "F32", 4},
                                               {Dtype::kF16, "F16", 2},
                                               {Dtype::kBF16, "BF16", 2},
                                               {Dtype::kI64, "I64", 8},
                                               {Dtype::kI32, "I32", 4},
                                               {Dtype::kI16, "I16", 2},
                                               {Dtype::kI8, "I8", 1},
                                               {Dtype::kU8, "U8", 1},
                                               {Dtype::kBool, "BOOL", 1}}};

const DtypeRow& row_of(Dtype dtype) {
  return kDtypes[static_cast<std::size_t>(dtype)];
}

// Takes the events of the JSON parser one by one. It builds only what the format has, so a file
// with deep nesting or double keys is refused at once and takes no memory.
//
//   state     what may come
//   kStart    {
//   kFile     the name of a tensor, __metadata__, or }
//   kEntry    { of a tensor        kMetadata   { of the metadata
//   kField    dtype, shape, data_offsets, or }
//   kDtype    a string    kShape, kOffsets   [    kShapeSizes, kOffsetValues   numbers, or ]
//   kKey      a key of the metadata, or }       kValue   a string
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(const std::string& file) : file_(file) {}

  SafetensorsHeader take() { return std::move(header_); }

  bool key(string_t& name) override;
  bool string(string_t& value) override;
  bool number_unsigned(number_unsigned_t value) override;
  bool start_object(std::size_t) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;
  bool null() override { out_of_place("null"); }
  bool boolean(bool) override { out_of_place("true or false"); }
  bool number_integer(number_integer_t) override { out_of_place("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    out_of_place("a number that is not whole or has more than 64 bits");
  }
  bool binary(binary_t&) override { out_of_place("binary data"); }
  bool parse_error(std::size_t at, const std::string&,
                   const nlohmann::detail::exception&) override {
    bad_header(fmt::format("is not JSON at byte {}", at));
  }

 private:
  enum class Expected {
    kStart,
    kFile,
    kEntry,
    kMetadata,
    kField,
    kDtype,
    kShape,
    kShapeSizes,
    kOffsets,
    kOffsetValues,
    kKey,
    kValue,
    kEnd
  };

  [[noreturn]] void bad_header(std::string_view wrong) const {
    refuse(file_, fmt::format("is not a safetensors file: its header {}", wrong), kFetchAgain);
  }
  [[noreturn]] void out_of_place(std::string_view what) const {
    bad_header(fmt::format("has {} out of place{}", what, where()));
  }
  std::string where() const {
    return name_.empty() ? "" : fmt::format(" in '{}'", printable(name_));
  }
  void expect(Expected place, std::string_view what) const {
    if (place_ != place) out_of_place(what);
  }
  void file_key(const std::string& name);
  void field_key(const std::string& name);
  void finish_entry();

  const std::string& file_;
  SafetensorsHeader header_;
  Expected place_ = Expected::kStart;
  std::string name_;   // of the tensor, or the key of the metadata
  HeaderEntry entry_;  // of that tensor
  bool has_metadata_ = false;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  int offsets_ = -1;  // how many came; -1 before the array
};

void HeaderReader::file_key(const std::string& name) {
  if (name == kMetadataKey) {
    if (std::exchange(has_metadata_, true)) bad_header("has __metadata__ twice");
    place_ = Expected::kMetadata;
    return;
  }
  if (header_.tensors.contains(name)) {
    bad_header(fmt::format("has the tensor '{}' twice", printable(name)));
  }
  name_ = name;
  entry_ = {};
  has_dtype_ = has_shape_ = false;
  offsets_ = -1;
  place_ = Expected::kEntry;
}

void HeaderReader::field_key(const std::string& name) {
  const bool again = (name == "dtype" && has_dtype_) || (name == "shape" && has_shape_) ||
                     (name == "data_offsets" && offsets_ >= 0);
  if (again) bad_header(fmt::format("has '{}' twice{}", name, where()));
  if (name == "dtype") {
    place_ = Expected::kDtype;
  } else if (name == "shape") {
    place_ = Expected::kShape;
  } else if (name == "data_offsets") {
    place_ = Expected::kOffsets;
  } else {
    bad_header(fmt::format("has an unknown field '{}'{}", printable(name), where()));
  }
}

bool HeaderReader::key(string_t& name) {
  if (place_ == Expected::kFile) {
    file_key(name);
  } else if (place_ == Expected::kField) {
    field_key(name);
  } else {
    expect(Expected::kKey, "a key");
    if (header_.metadata.contains(name)) {
      bad_header(fmt::format("has the metadata '{}' twice", printable(name)));
    }
    name_ = name;
    place_ = Expected::kValue;
  }
  return true;
}

bool HeaderReader::string(string_t& value) {
  if (place_ == Expected::kValue) {
    header_.metadata.emplace(std::exchange(name_, {}), std::move(value));
    place_ = Expected::kKey;
    return true;
  }
  expect(Expected::kDtype, "text");
  for (const DtypeRow& row : kDtypes) {
    if (row.name != value) continue;
    entry_.dtype = row.dtype;
    has_dtype_ = true;
    place_ = Expected::kField;
    return true;
  }
  refuse(file_,
         fmt::format("tensor '{}' has the dtype '{}', which is not known", printable(name_),
                     printable(value)),
         "convert it to F64, F32, F16, BF16, I64, I32, I16, I8, U8 or BOOL");
}

bool HeaderReader::number_unsigned(number_unsigned_t value) {
  if (place_ == Expected::kShapeSizes) {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      bad_header(fmt::format("has a shape beyond 63 bits{}", where()));
    }
    entry_.shape.push_back(static_cast<std::int64_t>(value));
    return true;
  }
  expect(Expected::kOffsetValues, "a number");
  if (offsets_ == 2) bad_header(fmt::format("has more than two data_offsets{}", where()));
  (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
  return true;
}

bool HeaderReader::start_object(std::size_t) {
  if (place_ == Expected::kStart) {
    place_ = Expected::kFile;
  } else if (place_ == Expected::kMetadata) {
    place_ = Expected::kKey;
  } else {
    expect(Expected::kEntry, "an object");
    place_ = Expected::kField;
  }
  return true;
}

void HeaderReader::finish_entry() {
  if (!has_dtype_ || !has_shape_ || offsets_ != 2) {
    bad_header(fmt::format("has no {}{}",
                           !has_dtype_   ? "dtype"
                           : !has_shape_ ? "shape"
                                         : "two data_offsets",
                           where()));
  }
  header_.tensors.emplace(std::exchange(name_, {}), std::move(entry_));
}

bool HeaderReader::end_object() {
  if (place_ == Expected::kFile) {
    place_ = Expected::kEnd;
    return true;
  }
  if (place_ == Expected::kField) {
    finish_entry();
  } else {
    expect(Expected::kKey, "the end of an object");
  }
  place_ = Expected::kFile;
  return true;
}

bool HeaderReader::start_array(std::size_t) {
  if (place_ == Expected::kShape) {
    has_shape_ = true;
    place_ = Expected::kShapeSizes;
  } else {
    expect(Expected::kOffsets, "an array");
    offsets_ = 0;
    place_ = Expected::kOffsetValues;
  }
  return true;
}

bool HeaderReader::end_array() {
  if (place_ == Expected::kOffsetValues && offsets_ != 2) {
    bad_header(fmt::format("has fewer than two data_offsets{}", where()));
  }
  place_ = Expected::kField;
  return true;
}

std::string quoted(const std::string& text) {
  try {
    return Json(text).dump();
  } catch (const Json::exception&) {
    throw BadInput(
        fmt::format("'{}' is not UTF-8 and cannot be written to a safetensors file; "
                    "rename it",
                    printable(text)));
  }
}

std::string format_entry(const std::string& name, const HeaderEntry& entry) {
  std::string shape;
  for (const std::int64_t size : entry.shape) {
    shape += fmt::format("{}{}", shape.empty() ? "" : ",", size);
  }
  return fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", quoted(name),
                     name_of(entry.dtype), shape, entry.begin, entry.end);
}

}  // namespace

std::size_t bytes_of(Dtype dtype) {
  return row_of(dtype).bytes;
}

std::string_view name_of(Dtype dtype) {
  return row_of(dtype).name;
}

std::optional<std::uint64_t> length_of(Dtype dtype, const std::vector<std::int64_t>& shape) {
  std::uint64_t length = bytes_of(dtype);
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(length, static_cast<std::uint64_t>(size), &length)) {
      return std::nullopt;
    }
  }
  return length;
}

SafetensorsHeader parse_header(std::string_view json, const std::string& file) {
  // Checked before the parser, because the parser would skip spaces and a byte order mark.
  if (!json.starts_with('{')) {
    refuse(file, "is not a safetensors file: its header does not begin with '{'", kFetchAgain);
  }
  HeaderReader reader(file);
  Json::sax_parse(json.begin(), json.end(), &reader);
  return reader.take();
}

std::string format_header(const SafetensorsHeader& header) {
  if (header.tensors.contains(std::string(kMetadataKey))) {
    throw BadInput("a tensor of a safetensors file cannot be named __metadata__; rename it");
  }
  std::string text = "{";
  if (!header.metadata.empty()) {
    text += fmt::format("\"{}\":{{", kMetadataKey);
    for (const auto& [key, value] : header.metadata) {
      text += fmt::format("{}{}:{}", text.back() == '{' ? "" : ",", quoted(key), quoted(value));
    }
    text += "}";
  }
  for (const auto& [name, entry] : header.tensors) {
    text += (text.size() == 1 ? "" : ",") + format_entry(name, entry);
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace lockstep::formats

#include "formats/safetensors.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <utility>

#include "base/atomic_file.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "formats/file_bytes.h"
#include "formats/safetensors_header.h"

namespace lockstep::formats {
namespace {

constexpr std::size_t kLengthBytes = 8;
// The limit of the format.
constexpr std::uint64_t kMostHeaderBytes = 100'000'000;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The header as text. The data follow it.
std::string_view find_header(std::span<const std::byte> bytes, const std::string& file) {
  if (bytes.size() < kLengthBytes) {
    refuse(file, fmt::format("has {} bytes, too few for a safetensors file", bytes.size()),
           kFetchAgain);
  }
  base::ByteReader reader(text_of(bytes));
  const auto length = reader.get<std::uint64_t>();
  if (length > kMostHeaderBytes) {
    refuse(file,
           fmt::format("is not a safetensors file: it says its header has {} bytes, more than {}",
                       length, kMostHeaderBytes),
           kFetchAgain);
  }
  if (length > bytes.size() - kLengthBytes) {
    refuse(file,
           fmt::format("is cut short or not a safetensors file: {} bytes are left for a header "
                       "of {}",
                       bytes.size() - kLengthBytes, length),
           kFetchAgain);
  }
  return text_of(bytes).substr(kLengthBytes, length);
}

// Checks that the tensors follow each other without gaps, from the first byte of the data to the
// last.
void check_places(const SafetensorsHeader& header, std::size_t data_bytes,
                  const std::string& file) {
  using Item = std::pair<const std::string, HeaderEntry>;
  std::vector<const Item*> order;
  for (const Item& item : header.tensors) order.push_back(&item);
  std::stable_sort(order.begin(), order.end(), [](const Item* a, const Item* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  std::uint64_t place = 0;
  for (const Item* item : order) {
    const HeaderEntry& entry = item->second;
    const auto length = length_of(entry.dtype, entry.shape);
    const std::string tensor = fmt::format("tensor '{}'", printable(item->first));
    if (entry.begin > entry.end || !length || *length != entry.end - entry.begin) {
      refuse(file, tensor + " has a shape that does not fit its data_offsets", kFetchAgain);
    }
    if (entry.end > data_bytes) {
      refuse(file,
             fmt::format("is cut short: {} ends at byte {} of the data, which has {}", tensor,
                         entry.end, data_bytes),
             kFetchAgain);
    }
    if (entry.begin != place) {
      refuse(file,
             tensor + (entry.begin < place ? " overlaps another" : " leaves a hole before it"),
             kFetchAgain);
    }
    place = entry.end;
  }
  if (place != data_bytes) {
    refuse(file, fmt::format("has {} bytes after its last tensor", data_bytes - place),
           kFetchAgain);
  }
}

// The order of the data: larger elements first, equal ones by name.
std::vector<const TensorView*> data_order(const std::vector<TensorView>& tensors) {
  std::vector<const TensorView*> order;
  order.reserve(tensors.size());
  for (const TensorView& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const TensorView* a, const TensorView* b) {
    const auto left = bytes_of(a->dtype);
    const auto right = bytes_of(b->dtype);
    return left != right ? left > right : a->name < b->name;
  });
  return order;
}

SafetensorsHeader make_header(const std::vector<const TensorView*>& order, Metadata metadata) {
  SafetensorsHeader header;
  header.metadata = std::move(metadata);
  std::uint64_t place = 0;
  for (const TensorView* tensor : order) {
    if (length_of(tensor->dtype, tensor->shape) != tensor->bytes.size()) {
      throw BadInput(
          fmt::format("tensor '{}' has {} bytes, which do not fit its shape; write all "
                      "of it, densely",
                      printable(tensor->name), tensor->bytes.size()));
    }
    const HeaderEntry entry{tensor->dtype, tensor->shape, place, place + tensor->bytes.size()};
    if (!header.tensors.emplace(tensor->name, entry).second) {
      throw BadInput(
          fmt::format("two tensors are named '{}'; a safetensors file has each name once",
                      printable(tensor->name)));
    }
    place = entry.end;
  }
  return header;
}

constexpr std::string_view kHashes = "data, header";
constexpr std::string_view kTakeEarlier = "take an earlier checkpoint or copy it again";

// The hash over everything that a header says, except this hash itself. The form of the JSON does
// not matter, because the header is written again for it.
std::string hash_header(SafetensorsHeader header) {
  header.metadata.erase(std::string(kHeaderHashKey));
  return base::to_hex(base::sha256(format_header(header)));
}

// True if the header has a hash, and the hash is right. Throws if it is wrong.
bool check_header(const SafetensorsHeader& header, const std::string& file) {
  const auto expected = header.metadata.find(std::string(kHeaderHashKey));
  if (expected == header.metadata.end()) {
    if (!header.metadata.contains(std::string(kHashesKey))) return false;
    refuse(file, "is damaged: its header has lost its SHA-256", kTakeEarlier);
  }
  if (hash_header(header) != expected->second) {
    refuse(file, "is damaged: its header does not have the SHA-256 that it says", kTakeEarlier);
  }
  return true;
}

std::string hash_data(const std::vector<const TensorView*>& order) {
  base::Sha256 hash;
  for (const TensorView* tensor : order) hash.update(text_of(tensor->bytes));
  return base::to_hex(hash.finish());
}

}  // namespace

Safetensors parse_safetensors(std::span<const std::byte> bytes, const std::string& file) {
  const std::string_view json = find_header(bytes, file);
  SafetensorsHeader header = parse_header(json, file);
  Safetensors parsed;
  parsed.data = bytes.subspan(kLengthBytes + json.size());
  parsed.header_is_hashed = check_header(header, file);
  check_places(header, parsed.data.size(), file);
  parsed.metadata = std::move(header.metadata);
  for (auto& [name, entry] : header.tensors) {
    parsed.tensors.push_back({name, entry.dtype, std::move(entry.shape),
                              parsed.data.subspan(entry.begin, entry.end - entry.begin)});
  }
  return parsed;
}

void verify_safetensors(const Safetensors& parsed, const std::string& file) {
  const auto expected = parsed.metadata.find(std::string(kDataHashKey));
  if (expected == parsed.metadata.end()) return;
  if (base::to_hex(base::sha256(text_of(parsed.data))) != expected->second) {
    refuse(file, "is damaged: its data does not have the SHA-256 that its header says",
           kTakeEarlier);
  }
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : path_(path), file_(path), parsed_(parse_safetensors(file_.bytes(), path)) {}

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  return SafetensorsFile(path);
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto& all = parsed_.tensors;
  const auto at = std::lower_bound(
      all.begin(), all.end(), name,
      [](const TensorView& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return at != all.end() && at->name == name ? &*at : nullptr;
}

void write_safetensors(const ByteSink& sink, const std::vector<TensorView>& tensors,
                       Metadata metadata) {
  const auto order = data_order(tensors);
  metadata[std::string(kDataHashKey)] = hash_data(order);
  metadata[std::string(kHashesKey)] = kHashes;
  SafetensorsHeader content = make_header(order, std::move(metadata));
  content.metadata[std::string(kHeaderHashKey)] = hash_header(content);
  const std::string header = format_header(content);
  if (header.size() > kMostHeaderBytes) {
    throw BadInput(
        fmt::format("a safetensors header of {} bytes is more than the {} of the "
                    "format; write fewer tensors or less metadata",
                    header.size(), kMostHeaderBytes));
  }
  sink(base::ByteWriter().put(std::uint64_t{header.size()}).bytes());
  sink(header);
  for (const TensorView* tensor : order) sink(text_of(tensor->bytes));
}

void save_safetensors(const std::string& path, const std::vector<TensorView>& tensors,
                      Metadata metadata, const std::function<void()>& began) {
  constexpr int kBeforeTensors = 2;  // the length of the header, and the header
  base::AtomicFile file(path);
  int parts = 0;
  write_safetensors(
      [&](std::string_view bytes) {
        file.write(bytes);
        if (parts++ == kBeforeTensors && began) began();
      },
      tensors, std::move(metadata));
  file.commit();
}

}  // namespace lockstep::formats

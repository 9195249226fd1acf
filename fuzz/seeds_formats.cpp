// First inputs for the fuzzers of file formats: small files that are right.

#include "base/bytes.h"
#include "formats/cifar10.h"
#include "formats/hash_log.h"
#include "formats/safetensors.h"
#include "formats/token_file.h"
#include "seeds.h"
#include "tests/support/gzip.h"

namespace {

using lockstep::fuzz::Seeds;
using lockstep::testing::gzip;
namespace formats = lockstep::formats;

Seeds idx_seeds() {
  return {std::string("\0\0\x08\x01\0\0\0\x03"
                      "abc",
                      11),
          std::string("\0\0\x08\x03\0\0\0\x01\0\0\0\x02\0\0\0\x02"
                      "abcd",
                      20)};
}

Seeds gzip_seeds() {
  return {gzip(""), gzip("a text, a text, a text"), gzip(std::string(100'000, 'x')) + gzip("y")};
}

Seeds hash_log_seeds() {
  formats::HashLog log;
  log.job = {{"seed", "7"}};
  log.tensors = {"a", "b"};
  std::string text = formats::hash_log_head(log);
  for (std::int64_t step = -1; step < 2; ++step) text += formats::hash_log_line({step, {1, 2}});
  return {text, formats::hash_log_head({})};
}

Seeds token_file_seeds() {
  const auto file = [](std::uint32_t magic, std::uint32_t version, const std::string& tokens) {
    std::string head =
        lockstep::base::ByteWriter().put(magic).put(version).put(std::uint32_t{2}).take();
    head.resize(formats::kTokenHeaderBytes);
    return head + tokens;
  };
  return {"abcdef", file(20240520, 1, "abcd"), file(20240801, 7, "abcdefgh")};
}

Seeds csv_seeds() {
  return {std::string(1, 0) + "1,2,0\n3,4,1\n",
          "\x10"
          "a;b;c\r\n\"1\";-2e3;1\r\n",
          "\x01x\ty\n+1.5\t2\n\n"};
}

Seeds safetensors_seeds() {
  const std::string data = "0123456789abcdef";
  const auto bytes = std::as_bytes(std::span(data.data(), data.size()));
  Seeds seeds;
  const auto add = [&](const std::vector<formats::TensorView>& tensors,
                       const formats::Metadata& metadata) {
    std::string file;
    formats::write_safetensors([&](std::string_view part) { file += part; }, tensors, metadata);
    seeds.push_back(file);
  };
  add({}, {});
  add({{"w", formats::Dtype::kF32, {2, 1}, bytes.first(8)},
       {"n", formats::Dtype::kI64, {}, bytes.last(8)},
       {"m", formats::Dtype::kBool, {3}, bytes.first(3)}},
      {{"step", "12"}, {"\"\n", "\\u"}});
  // Without hashes, which few changes survive.
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  seeds.push_back(lockstep::base::ByteWriter()
                      .put(std::uint64_t{header.size()})
                      .put_raw(header)
                      .put_raw(data.substr(0, 8))
                      .take());
  return seeds;
}

}  // namespace

void lockstep::fuzz::write_format_seeds(const std::filesystem::path& root) {
  write(root / "fuzz_idx", idx_seeds());
  write(root / "fuzz_gzip", gzip_seeds());
  write(root / "fuzz_cifar10", {std::string(1 + formats::kCifarImageBytes, '\x05'),
                                std::string(2 * (1 + formats::kCifarImageBytes), '\x09')});
  write(root / "fuzz_csv", csv_seeds());
  write(root / "fuzz_token_file", token_file_seeds());
  write(root / "fuzz_text", {"to be or not to be"});
  write(root / "fuzz_hash_log", hash_log_seeds());
  write(root / "fuzz_safetensors", safetensors_seeds());
}

#include "formats/safetensors.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "base/bytes.h"
#include "base/fd.h"
#include "base/hash.h"
#include "formats/testing.h"

namespace lockstep::formats {
namespace {

std::span<const std::byte> bytes_view(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string file_with(const std::string& header, std::string_view data) {
  base::ByteWriter out;
  out.put(std::uint64_t{header.size()}).put_raw(header).put_raw(data);
  return out.take();
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return fmt::format(R"({{"dtype":"{}","shape":{},"data_offsets":{}}})", dtype, shape, offsets);
}

void expect_bad_tensors(const std::string& header, std::string_view data, const std::string& part) {
  const std::string file = file_with(header, data);
  expect_refusal([&] { parse_safetensors(bytes_view(file), "the-file"); }, "the-file", part);
}

std::string written(const std::vector<TensorView>& tensors, const Metadata& metadata = {}) {
  std::string out;
  write_safetensors([&](std::string_view part) { out += part; }, tensors, metadata);
  return out;
}

Metadata without_hashes(Metadata metadata) {
  for (const auto key : {kDataHashKey, kHeaderHashKey, kHashesKey})
    metadata.erase(std::string(key));
  return metadata;
}

// One of each dtype, with sizes that would leave others unaligned, names that need quoting, a
// scalar and an empty one.
std::vector<TensorView> some_tensors() {
  static const std::string kData = base::random_bytes(64);
  const auto bytes = bytes_view(kData);
  return {{"odd", Dtype::kU8, {3}, bytes.subspan(0, 3)},
          {"a \"quoted\"\\ \n name: ü", Dtype::kF32, {2, 1, 2}, bytes.subspan(3, 16)},
          {"", Dtype::kF64, {1}, bytes.subspan(1, 8)},
          {"scalar", Dtype::kI64, {}, bytes.subspan(9, 8)},
          {"none", Dtype::kF16, {4, 0, 7}, {}},
          {"b16", Dtype::kBF16, {3}, bytes.subspan(20, 6)},
          {"f16", Dtype::kF16, {1, 1}, bytes.subspan(30, 2)},
          {"i32", Dtype::kI32, {2}, bytes.subspan(40, 8)},
          {"i16", Dtype::kI16, {1}, bytes.subspan(50, 2)},
          {"i8", Dtype::kI8, {5}, bytes.subspan(5, 5)},
          {"bool", Dtype::kBool, {1}, bytes.subspan(6, 1)}};
}

TEST(Safetensors, WhatIsWrittenIsReadBack) {
  const Metadata metadata = {{"step", "12"}, {"a\"b", "line\nbreak"}};
  const std::string file = written(some_tensors(), metadata);
  const Safetensors parsed = parse_safetensors(bytes_view(file), "f");
  ASSERT_EQ(parsed.tensors.size(), some_tensors().size());
  EXPECT_TRUE(std::is_sorted(parsed.tensors.begin(), parsed.tensors.end(),
                             [](const auto& a, const auto& b) { return a.name < b.name; }));
  for (const TensorView& tensor : some_tensors()) {
    const auto at = std::find_if(parsed.tensors.begin(), parsed.tensors.end(),
                                 [&](const auto& other) { return other.name == tensor.name; });
    ASSERT_NE(at, parsed.tensors.end()) << tensor.name;
    EXPECT_EQ(at->dtype, tensor.dtype);
    EXPECT_EQ(at->shape, tensor.shape);
    EXPECT_TRUE(
        std::equal(at->bytes.begin(), at->bytes.end(), tensor.bytes.begin(), tensor.bytes.end()));
    const auto place = static_cast<std::size_t>(at->bytes.data() - parsed.data.data());
    EXPECT_EQ(place % bytes_of(tensor.dtype), 0U) << tensor.name << " is not aligned";
  }
  EXPECT_EQ(parsed.metadata.at(std::string(kDataHashKey)),
            base::to_hex(base::sha256(
                {reinterpret_cast<const char*>(parsed.data.data()), parsed.data.size()})));
  EXPECT_EQ(without_hashes(parsed.metadata), metadata);
  EXPECT_TRUE(parsed.header_is_hashed);
  EXPECT_NO_THROW(verify_safetensors(parsed, "f"));
}

TEST(Safetensors, TheOrderOfTensorsDoesNotChangeTheFile) {
  auto tensors = some_tensors();
  const std::string file = written(tensors);
  std::reverse(tensors.begin(), tensors.end());
  EXPECT_EQ(written(tensors), file);
  EXPECT_EQ(written(tensors, {{std::string(kDataHashKey), "an earlier one"},
                              {std::string(kHeaderHashKey), "an earlier one"}}),
            file);
}

TEST(Safetensors, AFileWithoutTensorsIsOne) {
  const std::string file = written({});
  EXPECT_TRUE(parse_safetensors(bytes_view(file), "f").tensors.empty());
  EXPECT_TRUE(parse_safetensors(bytes_view(file_with("{}", "")), "f").metadata.empty());
}

TEST(Safetensors, FilesOfOthersAreReadAndHaveNothingToVerify) {
  const std::string header = fmt::format(R"({{"b":{},"__metadata__":{{"format":"pt"}},"a":{}}}   )",
                                         entry("F16", "[2]", "[0,4]"), entry("U8", "[]", "[4,5]"));
  const std::string file = file_with(header, "12345");
  const Safetensors parsed = parse_safetensors(bytes_view(file), "f");
  ASSERT_EQ(parsed.tensors.size(), 2U);
  EXPECT_EQ(parsed.tensors[0].name, "a");
  EXPECT_EQ(parsed.tensors[0].bytes[0], std::byte{'5'});
  EXPECT_EQ(parsed.metadata.at("format"), "pt");
  EXPECT_NO_THROW(verify_safetensors(parsed, "f"));
}

TEST(Safetensors, EveryCutIsRefused) {
  const std::string file = written(some_tensors());
  for (std::size_t size = 0; size < file.size(); ++size) {
    EXPECT_THROW(parse_safetensors(bytes_view(file.substr(0, size)), "f"), BadInput) << size;
  }
  EXPECT_THROW(parse_safetensors(bytes_view(file + "x"), "f"), BadInput);
}

TEST(Safetensors, LengthsOfHeadersAreHeldAgainstTheFile) {
  const auto refused = [](std::string_view file, const std::string& part) {
    expect_refusal([&] { parse_safetensors(bytes_view(file), "the-file"); }, "the-file", part);
  };
  refused("", "too few");
  refused("PK\x03\x04 a zip file", "more than 100000000");
  refused(base::ByteWriter().put(std::uint64_t{100}).put_raw("{}").bytes(), "cut short");
  refused(file_with("", ""), "does not begin with '{'");
  refused(file_with(" {}", ""), "does not begin with '{'");
  refused(file_with("{", ""), "not JSON at byte");
  refused(file_with("{} {}", ""), "not JSON at byte");
  refused(file_with("{\"\xff\":1}", ""), "not JSON at byte");
}

TEST(Safetensors, PlacesMustCoverTheDataOnce) {
  const std::string four = entry("F32", "[1]", "[0,4]");
  expect_bad_tensors("{\"a\":" + four + "}", "123", "is cut short: tensor 'a' ends at byte 4");
  expect_bad_tensors("{\"a\":" + four + "}", "12345", "1 bytes after its last tensor");
  expect_bad_tensors("{}", "1", "1 bytes after its last tensor");
  expect_bad_tensors(fmt::format(R"({{"a":{},"b":{}}})", four, entry("U8", "[1]", "[3,4]")), "1234",
                     "tensor 'b' overlaps another");
  expect_bad_tensors(fmt::format(R"({{"a":{},"b":{}}})", four, entry("U8", "[1]", "[5,6]")),
                     "123456", "tensor 'b' leaves a hole");
  expect_bad_tensors(fmt::format(R"({{"a":{},"b":{}}})", four, four), "1234", "overlaps");
}

TEST(Safetensors, ShapesMustFitTheirPlaces) {
  for (const std::string& bad :
       {entry("F32", "[2]", "[0,4]"), entry("F32", "[1]", "[4,0]"), entry("F32", "[0]", "[0,4]"),
        entry("U8", "[4294967296,4294967296,4]", "[0,0]"),
        entry("F64", "[4611686018427387904]", "[0,0]")}) {
    expect_bad_tensors("{\"a\":" + bad + "}", "1234", "tensor 'a' has a shape that does not fit");
  }
}

TEST(Safetensors, OtherHeadersAreRefused) {
  const std::string good = entry("U8", "[1]", "[0,1]");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[]", "'{'"},
      {R"({"a":1})", "a number out of place in 'a'"},
      {R"({"a":{}})", "has no dtype in 'a'"},
      {R"({"a":{"dtype":"U8"}})", "has no shape in 'a'"},
      {R"({"a":{"dtype":"U8","shape":[1]}})", "has no two data_offsets in 'a'"},
      {R"({"a":{"dtype":"U8","dtype":"U8"}})", "has 'dtype' twice"},
      {R"({"a":{"shape":[1],"shape":[1]}})", "has 'shape' twice"},
      {R"({"a":{"data_offsets":[0,1],"data_offsets":[0,1]}})", "has 'data_offsets' twice"},
      {R"({"a":{"extra":1}})", "unknown field 'extra'"},
      {R"({"a":{"dtype":8}})", "a number out of place"},
      {R"({"a":{"dtype":"F8_E4M3"}})", "dtype 'F8_E4M3', which is not known"},
      {R"({"a":{"shape":[-1]}})", "a negative number"},
      {R"({"a":{"shape":[1.0]}})", "not whole"},
      {R"({"a":{"shape":[99999999999999999999]}})", "more than 64 bits"},
      {R"({"a":{"shape":[9223372036854775808]}})", "beyond 63 bits"},
      {R"({"a":{"shape":[[1]]}})", "an array out of place"},
      {R"({"a":{"shape":[null]}})", "null out of place"},
      {R"({"a":{"shape":"x"}})", "text out of place"},
      {R"({"a":{"data_offsets":[0]}})", "fewer than two data_offsets"},
      {R"({"a":{"data_offsets":[0,1,2]}})", "more than two data_offsets"},
      {R"({"a":true})", "true or false"},
      {fmt::format(R"({{"a\nb":{},"a\nb":{}}})", good, good), R"(the tensor 'a\x0ab' twice)"},
      {R"({"__metadata__":{},"__metadata__":{}})", "__metadata__ twice"},
      {R"({"__metadata__":{"a":"b","a":"c"}})", "the metadata 'a' twice"},
      {R"({"__metadata__":{"a":1}})", "a number out of place in 'a'"},
      {R"({"__metadata__":[]})", "an array out of place"},
      {R"({"a":)" + std::string(100'000, '[') + "}", "an array out of place"}};
  for (const auto& [header, part] : cases) expect_bad_tensors(header, "1", part);
}

TEST(Safetensors, WhatCannotBeWrittenIsRefusedBeforeAnyByte) {
  const auto refused = [](const std::vector<TensorView>& tensors, const Metadata& metadata,
                          const std::string& part) {
    expect_refusal(
        [&] {
          write_safetensors([](std::string_view) { ADD_FAILURE() << "bytes were written"; },
                            tensors, metadata);
        },
        "", part);
  };
  const TensorView one{"a", Dtype::kU8, {1}, bytes_view("x")};
  TensorView other = one;
  other.shape = {2};
  refused({one, one}, {}, "two tensors are named 'a'");
  refused({other}, {}, "do not fit its shape");
  other.shape = {-1, -1};
  refused({other}, {}, "do not fit its shape");
  refused({{"__metadata__", Dtype::kU8, {1}, bytes_view("x")}}, {}, "__metadata__");
  refused({{"\xff", Dtype::kU8, {1}, bytes_view("x")}}, {}, "'\\xff' is not UTF-8");
  refused({}, {{"key", "\xc3"}}, "is not UTF-8");
}

class SafetensorsFileTest : public FormatsTest {
 protected:
  std::string saved(const Metadata& metadata = {}) const {
    save_safetensors(path("model"), some_tensors(), metadata);
    return path("model");
  }
};

TEST_F(SafetensorsFileTest, IsOpenedSearchedAndMoved) {
  SafetensorsFile first = SafetensorsFile::open(saved());
  const SafetensorsFile file = std::move(first);
  EXPECT_EQ(file.tensors().size(), some_tensors().size());
  ASSERT_NE(file.find("odd"), nullptr);
  EXPECT_EQ(file.find("odd")->bytes[0], some_tensors()[0].bytes[0]);
  EXPECT_EQ(file.find("absent"), nullptr);
  EXPECT_NO_THROW(file.verify());
  expect_refusal([&] { SafetensorsFile::open(path("absent")); }, "absent", "No such file");
}

TEST_F(SafetensorsFileTest, EveryChangedByteOfTheDataIsFound) {
  const std::string good = base::read_file(saved(), 1 << 20);
  std::size_t data = 0;
  for (const TensorView& tensor : some_tensors()) data += tensor.bytes.size();
  for (std::size_t i = good.size() - data; i < good.size(); ++i) {
    std::string changed = good;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    const SafetensorsFile file = SafetensorsFile::open(put("changed", changed));
    expect_refusal([&] { file.verify(); }, "changed", "is damaged");
  }
}

bool same_content(const Safetensors& a, const Safetensors& b) {
  const auto same = [](const TensorView& one, const TensorView& other) {
    return one.name == other.name && one.dtype == other.dtype && one.shape == other.shape &&
           one.bytes.data() == other.bytes.data() && one.bytes.size() == other.bytes.size();
  };
  return a.metadata == b.metadata &&
         std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(), same);
}

// Every bit of the length and the header. White space is all that may become another.
TEST(Safetensors, EveryChangedBitOfTheHeaderIsFoundOrChangesNothing) {
  const std::string good =
      written(some_tensors(), {{"lockstep.step", "12"}, {"lockstep.job.seed", "1"}});
  std::string file = good;  // changed where it is, so that places can be compared
  const Safetensors expected = parse_safetensors(bytes_view(file), "the-file");
  const std::size_t end = file.size() - expected.data.size();
  int harmless = 0;
  for (std::size_t bit = 0; bit < 8 * end; ++bit) {
    file[bit / 8] = static_cast<char>(good[bit / 8] ^ (1 << bit % 8));
    try {
      EXPECT_TRUE(same_content(parse_safetensors(bytes_view(file), "the-file"), expected))
          << "bit " << bit % 8 << " of byte " << bit / 8;
      ++harmless;
    } catch (const BadInput& error) {
      EXPECT_THAT(error.what(), ::testing::StartsWith("the-file: "));
    }
    file[bit / 8] = good[bit / 8];
  }
  EXPECT_LE(harmless, 4 * 8);  // spaces at the end that became another white space
}

TEST(Safetensors, AHeaderThatIsWrittenInAnotherWayHasTheSameHash) {
  const std::string file = written({{"a", Dtype::kU8, {1}, bytes_view("x")}}, {{"b", "c"}});
  const Safetensors parsed = parse_safetensors(bytes_view(file), "f");
  std::string header = "{ \"\\u0061\" : " + entry("U8", "[1]", "[0,1]") + ", \"__metadata__\":{";
  for (const auto& [key, value] : parsed.metadata)
    header += fmt::format("{}\n\"{}\": \"{}\"", header.back() == '{' ? "" : ",", key, value);
  const std::string other = file_with(header + "}}", "x");
  EXPECT_TRUE(parse_safetensors(bytes_view(other), "f").header_is_hashed);
}

TEST(Safetensors, WhatEarlierVersionsWroteIsReadAndItsHeaderIsNotChecked) {
  const std::string hash = base::to_hex(base::sha256("x"));
  const std::string file = file_with(fmt::format(R"({{"__metadata__":{{"{}":"{}"}},"a":{}}})",
                                                 kDataHashKey, hash, entry("U8", "[1]", "[0,1]")),
                                     "x");
  const Safetensors parsed = parse_safetensors(bytes_view(file), "f");
  EXPECT_FALSE(parsed.header_is_hashed);
  EXPECT_NO_THROW(verify_safetensors(parsed, "f"));
}

TEST_F(SafetensorsFileTest, AnIndependentReaderSeesTheSame) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "needs python3";
  const std::string file = saved({{"step", "12"}, {"text", "a \"b\" ü"}});
  const std::string command = fmt::format("python3 '{}' '{}' | sort", SAFETENSORS_READER, file);
  const std::unique_ptr<FILE, decltype(&::pclose)> pipe(::popen(command.c_str(), "r"), &::pclose);
  std::string seen;
  for (int c = std::fgetc(pipe.get()); c != EOF; c = std::fgetc(pipe.get())) {
    seen.push_back(static_cast<char>(c));
  }
  for (const TensorView& tensor : some_tensors()) {
    std::string shape;
    for (const auto size : tensor.shape)
      shape += fmt::format("{}{}", shape.empty() ? "" : "x", size);
    const std::string hash = base::to_hex(
        base::sha256({reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()}));
    EXPECT_THAT(seen, ::testing::HasSubstr(fmt::format("{} {} {}\n", name_of(tensor.dtype),
                                                       shape.empty() ? "scalar" : shape, hash)));
  }
  EXPECT_THAT(seen, ::testing::HasSubstr(R"(tensor "a \"quoted\"\\ \n name: \u00fc" F32 2x1x2 )"));
  EXPECT_THAT(seen, ::testing::HasSubstr("metadata \"step\" \"12\"\n"));
  EXPECT_THAT(seen, ::testing::HasSubstr(R"(metadata "text" "a \"b\" \u00fc")"));
}

}  // namespace
}  // namespace lockstep::formats

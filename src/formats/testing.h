// What the tests of the formats share: a directory for each test, files in it, gzip, and the check
// that a refusal is one line.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>

#include "formats/file_bytes.h"
#include "tests/support/gzip.h"

namespace lockstep::formats {

inline ByteSpan span_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

using lockstep::testing::gzip;

// Expects BadInput in one line that has the name of the file and the words `part`.
inline void expect_refusal(const std::function<void()>& body, const std::string& file,
                           const std::string& part) {
  try {
    body();
    ADD_FAILURE() << "not refused: " << part;
  } catch (const BadInput& error) {
    const std::string text = error.what();
    EXPECT_THAT(text, ::testing::HasSubstr(file));
    EXPECT_THAT(text, ::testing::HasSubstr(part));
    EXPECT_THAT(text, ::testing::HasSubstr("; ")) << "what to do is missing";
    EXPECT_EQ(text.find('\n'), std::string::npos);
  }
}

class FormatsTest : public ::testing::Test {
 protected:
  FormatsTest() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "lockstep-formats-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
  }
  ~FormatsTest() override { std::filesystem::remove_all(directory_); }

  std::string path(const std::string& name) const { return (directory_ / name).string(); }
  std::string put(const std::string& name, std::string_view bytes) const {
    std::ofstream(directory_ / name, std::ios::binary) << bytes;
    return path(name);
  }

  std::filesystem::path directory_;
};

}  // namespace lockstep::formats

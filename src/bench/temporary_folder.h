// A temporary folder that is removed with the object. A kill leaves it behind.
#pragma once

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace lockstep::bench {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code error;
    path_ = (std::filesystem::temp_directory_path(error) / "lockstep-bench-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr)
      throw Unavailable(fmt::format("cannot make a folder such as {}", path_));
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace lockstep::bench

// A folder of its own for a test, gone with it. Not with std::filesystem: see base/files.h.
#pragma once

#include <ftw.h>
#include <stdlib.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

namespace lockstep::testing {

class Folder {
 public:
  Folder() {
    if (::mkdtemp(path_.data()) == nullptr)
      throw std::system_error(errno, std::generic_category(), path_);
  }
  ~Folder() {
    constexpr int kDescriptors = 8;
    ::nftw(
        path_.c_str(),
        [](const char* path, const struct stat*, int, FTW*) { return ::remove(path); },
        kDescriptors, FTW_DEPTH | FTW_PHYS);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_ = "/tmp/lockstep test XXXXXX";
};

}  // namespace lockstep::testing

#include "base/files.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>

namespace lockstep::base {

bool exists(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

bool is_directory(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

std::string why_not_writable(const std::string& path) {
  if (path == "-") return "give the name of a file";
  struct stat status {};
  const bool is_there = ::stat(path.c_str(), &status) == 0;
  const int error = errno;
  if (is_there && S_ISDIR(status.st_mode)) return "it is a directory";
  const std::string folder = parent_path(path);
  if (!is_directory(folder)) return "there is no directory " + folder;
  if (is_there && !S_ISREG(status.st_mode)) return "it is not a regular file";
  if (!is_there && error != ENOENT)
    return std::string("cannot write there: ") + std::strerror(error);
  if (::access(folder.c_str(), W_OK) != 0)
    return std::string("cannot write there: ") + std::strerror(errno);
  return "";
}

bool make_directories(const std::string& path) {
  if (is_directory(path)) return true;
  const std::string parent = parent_path(path);
  if (parent != path && parent != "." && !make_directories(parent)) return false;
  if (::mkdir(path.c_str(), 0777) == 0) return true;
  const int error = errno;  // what follows sets it, too
  if (is_directory(path)) return true;
  errno = error == EEXIST ? ENOTDIR : error;
  return false;
}

std::vector<std::string> names_in(const std::string& directory) {
  const auto close = [](DIR* handle) { ::closedir(handle); };
  const std::unique_ptr<DIR, decltype(close)> handle(::opendir(directory.c_str()), close);
  std::vector<std::string> names;
  if (!handle) return names;
  while (const dirent* entry = ::readdir(handle.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string link_target(const std::string& path) {
  std::array<char, PATH_MAX> target{};
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
  return length <= 0 ? "" : std::string(target.data(), static_cast<std::size_t>(length));
}

bool is_named(int fd, int directory, const char* name, int flags) {
  struct stat file {};
  struct stat named {};
  return ::fstat(fd, &file) == 0 && ::fstatat(directory, name, &named, flags) == 0 &&
         file.st_ino == named.st_ino && file.st_dev == named.st_dev;
}

std::string join_path(const std::string& directory, const std::string& name) {
  if (directory.empty() || directory.back() == '/') return directory + name;
  return directory + "/" + name;
}

std::string parent_path(const std::string& path) {
  const auto last = path.find_last_not_of('/');
  if (last == std::string::npos) return path.empty() ? "." : "/";
  const auto slash = path.rfind('/', last);
  if (slash == std::string::npos) return ".";
  const auto end = path.find_last_not_of('/', slash);
  return end == std::string::npos ? "/" : path.substr(0, end + 1);
}

}  // namespace lockstep::base

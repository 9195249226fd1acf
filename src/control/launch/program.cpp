#include "control/launch/program.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/files.h"

namespace lockstep::control {
namespace {

enum class Kind { kAbsent, kNotExecutable, kFolder, kRunnable };

Kind look_at(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    return errno == EACCES ? Kind::kNotExecutable : Kind::kAbsent;
  if (S_ISDIR(status.st_mode)) return Kind::kFolder;
  return ::access(path.c_str(), X_OK) == 0 ? Kind::kRunnable : Kind::kNotExecutable;
}

Program at_path(const std::string& path) {
  switch (look_at(path)) {
    case Kind::kRunnable:
      return {path, 0, {}};
    case Kind::kFolder:
      return {{},
              kCannotExecute,
              fmt::format("{} is a folder, not a program; name the program in it", path)};
    case Kind::kNotExecutable:
      return {
          {}, kCannotExecute, fmt::format("{} is not executable; run: chmod +x {}", path, path)};
    case Kind::kAbsent:
      break;
  }
  return {{}, kNotFound, fmt::format("{}: no such program; check the path", path)};
}

Program not_on_path(const std::string& name) {
  if (look_at("./" + name) == Kind::kRunnable) {
    return {{},
            kNotFound,
            fmt::format("{} is not on PATH; for the one in this folder write ./{}", name, name)};
  }
  return {{},
          kNotFound,
          fmt::format("{}: no such program on PATH; give its path, such as ./{}", name, name)};
}

}  // namespace

Program find_program(const std::string& name, const std::string& search_path) {
  if (name.find('/') != std::string::npos) return at_path(name);
  std::string_view rest = search_path;
  std::string blocked;
  while (!rest.empty()) {
    const auto end = std::min(rest.find(':'), rest.size());
    const std::string folder(end == 0 ? "." : rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const std::string path = fmt::format("{}/{}", folder, name);
    const Kind kind = look_at(path);
    if (kind == Kind::kRunnable) return {path, 0, {}};
    if (kind == Kind::kNotExecutable && blocked.empty()) blocked = path;
  }
  return blocked.empty() ? not_on_path(name) : at_path(blocked);
}

std::string explain_exec_failure(const std::string& path, int error) {
  switch (error) {
    case ENOEXEC:
      return fmt::format("{} is neither a program of this machine nor a script that begins with #!",
                         path);
    case ENOENT:
      return fmt::format(
          "{} needs an interpreter or loader that does not exist; see its #! line or run: file {}",
          path, path);
    case E2BIG:
      return fmt::format("the arguments and environment of {} are too long; pass less", path);
    case EAGAIN:
    case ENOMEM:
      return fmt::format("no process for {}: {}; start fewer workers or raise `ulimit -u`", path,
                         std::strerror(error));
    default:
      return fmt::format("cannot execute {}: {}", path, std::strerror(error));
  }
}

std::string own_file(const std::string& name) {
  const std::string folder = base::parent_path(own_program());
  for (const std::string& path :
       {base::join_path(folder, name),
        base::join_path(base::parent_path(folder), "libexec/lockstep/" + name)}) {
    if (base::exists(path)) return path;
  }
  return {};
}

std::string own_program() {
  return base::link_target("/proc/self/exe");
}

}  // namespace lockstep::control

#include "control/launch/own_file.h"

#include "base/files.h"

namespace lockstep::control {

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

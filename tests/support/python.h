// The Python that has PyTorch, for tests that compare with it.
#pragma once

#include <cstdlib>
#include <string>

namespace lockstep::testing {

// Debian's, which another python3 on the PATH may hide; or that one. Empty: neither has PyTorch.
// `make deps-test` installs it. PyTorch is looked for and not loaded, which takes two seconds.
inline std::string python_with_torch() {
  for (const std::string python : {"/usr/bin/python3", "python3"}) {
    const std::string look =
        " -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec(\"torch\") is None)'";
    if (std::system((python + look + " > /dev/null 2>&1").c_str()) == 0) return python;
  }
  return "";
}

}  // namespace lockstep::testing

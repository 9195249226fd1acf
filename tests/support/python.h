// The Python that has PyTorch, for tests that compare with it.
#pragma once

#include <cstdlib>
#include <string>

namespace lockstep::testing {

// Debian's, which another python3 on the PATH may hide; or that one. Empty: neither has PyTorch.
// `make deps-test` installs it.
inline std::string python_with_torch() {
  for (const std::string python : {"/usr/bin/python3", "python3"}) {
    if (std::system((python + " -c 'import torch.distributed' > /dev/null 2>&1").c_str()) == 0)
      return python;
  }
  return "";
}

}  // namespace lockstep::testing

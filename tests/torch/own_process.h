// This test program once more, as a process of its own: for what is decided when a process starts.
#pragma once

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace lockstep::testing {

inline std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The command that runs one test, disabled otherwise, with `environment` ("A=1 B=2"); its output goes to a file. The limit
// is for a process that hangs: under a sanitizer, beside other work, a minute was too short.
inline std::string command_alone(const std::string& test, const std::string& environment,
                                 const std::string& output) {
  std::array<char, 4096> path{};
  if (::readlink("/proc/self/exe", path.data(), path.size() - 1) <= 0) return "false";
  return "env GTEST_BRIEF=1 " + environment + " timeout 300 '" + path.data() +
         "' --gtest_also_run_disabled_tests --gtest_filter='" + test + "' > '" + output + "' 2>&1";
}

// No test of that name is a success to GoogleTest.
inline bool one_passed(const std::string& output) {
  return contents(output).find("[  PASSED  ] 1 test.") != std::string::npos;
}

// Whether it ran and passed.
inline bool passes_alone(const std::string& test, const std::string& environment,
                         const std::string& output) {
  return std::system(command_alone(test, environment, output).c_str()) == 0 && one_passed(output);
}

// The variables that a worker with so many threads is started with; and threads that wait leave the cores to others.
inline std::string thread_variables(int threads) {
  const std::string number = std::to_string(threads);
  return "OMP_WAIT_POLICY=passive OMP_NUM_THREADS=" + number + " OPENBLAS_NUM_THREADS=" + number;
}

}  // namespace lockstep::testing

// Where programs are: the one to run, found as a shell does it, and those that belong to the `lockstep` command.
#pragma once

#include <string>

namespace lockstep::control {

// The exit codes of shells.
inline constexpr int kCannotExecute = 126;
inline constexpr int kNotFound = 127;

struct Program {
  std::string path;     // empty: it cannot run
  int exit_code = 0;    // then kNotFound, or kCannotExecute
  std::string problem;  // and one line that says what to do
};

// A name with a '/' is a path; any other is looked for in the folders of `search_path` (PATH's
// form).
Program find_program(const std::string& name, const std::string& search_path);

// The same line for an exec that failed although the file looked right.
std::string explain_exec_failure(const std::string& path, int error);

// A file that belongs to the command: beside it where it was built, in libexec where it was installed. Empty if it is
// not there.
std::string own_file(const std::string& name);

// The command itself.
std::string own_program();

}  // namespace lockstep::control

// What the fuzzers of file formats share: a reader returns, or refuses in one line that names the
// file. Anything else that comes out of it ends the fuzzer.
#pragma once

#include <lockstep/errors.h>

#include "formats/file_bytes.h"
#include "fuzz.h"

namespace lockstep::fuzz {

template <typename Body>
void only_bad_input(const Body& body) {
  try {
    body();
  } catch (const BadInput& error) {
    const std::string_view text = error.what();
    require(text.find('\n') == std::string_view::npos, "a refusal is one line");
    require(text.starts_with("the-file: "), "a refusal names the file");
    require(text.find("; ") != std::string_view::npos, "a refusal says what to do");
  }
}

inline const std::string kFile = "the-file";

}  // namespace lockstep::fuzz

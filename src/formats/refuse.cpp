#include "formats/refuse.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

namespace lockstep::formats {

void refuse(std::string_view file, std::string_view wrong, std::string_view remedy) {
  throw BadInput(fmt::format("{}: {}; {}", file, wrong, remedy));
}

std::string printable(std::string_view text) {
  constexpr std::size_t kMost = 60;
  std::string out;
  for (const char c : text.substr(0, kMost)) {
    if (c >= ' ' && c <= '~') {
      out.push_back(c);
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return text.size() > kMost ? out + "…" : out;
}

}  // namespace lockstep::formats

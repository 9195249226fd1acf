#include "base/diagnosis.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <new>
#include <system_error>

namespace lockstep::base {

// The request for a report comes before what(), which may be long: a notice to peers that is too long loses its end.
std::string diagnosis(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "no memory left";
  if (dynamic_cast<const Error*>(&error) != nullptr ||
      dynamic_cast<const std::system_error*>(&error) != nullptr)
    return error.what();
  return fmt::format("a bug in Lockstep, please report it with this line: {}", error.what());
}

}  // namespace lockstep::base

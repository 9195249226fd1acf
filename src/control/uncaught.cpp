#include "control/uncaught.h"

#include <lockstep/errors.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>

#include "base/log.h"

namespace lockstep::control {
namespace {

std::terminate_handler handler_before = nullptr;

[[noreturn]] void end_with_code(const Error& error) {
  base::log(base::LogLevel::kError, "{}", error.what());
  ::_exit(EXIT_FAILURE);
}

[[noreturn]] void on_terminate() {
  if (const auto uncaught = std::current_exception()) {
    try {
      std::rethrow_exception(uncaught);
    } catch (const BadInput& error) {
      end_with_code(error);
    } catch (const Mismatch& error) {
      end_with_code(error);
    } catch (...) {
    }
  }
  if (handler_before != nullptr) handler_before();
  std::abort();
}

}  // namespace

void end_with_code_if_uncaught() {
  const std::terminate_handler before = std::set_terminate(on_terminate);
  if (before != on_terminate) handler_before = before;
}

}  // namespace lockstep::control

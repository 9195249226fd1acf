#include "torch/step/leader.h"

#include <c10/util/Exception.h>
#include <lockstep/errors.h>

#include "base/diagnosis.h"
#include "control/gather_text.h"

namespace lockstep::train {
namespace {

std::string kind_digit(ErrorKind kind) {
  return std::string(1, static_cast<char>('0' + static_cast<int>(kind)));
}

}  // namespace

std::string from_leader(Comm& comm, const std::function<std::string()>& read) {
  std::string said;
  if (comm.rank() == 0) {
    try {
      said = "+" + read();
    } catch (const Error& error) {
      said = kind_digit(error.kind()) + error.what();
    } catch (const c10::Error& error) {
      said = kind_digit(ErrorKind::kUnavailable) + error.what_without_backtrace();
    } catch (const std::exception& error) {
      said = kind_digit(ErrorKind::kUnavailable) + base::diagnosis(error);
    }
  }
  said = control::gather_text(comm, said).front();
  if (said.front() != '+') raise(static_cast<ErrorKind>(said.front() - '0'), said.substr(1));
  return said.substr(1);
}

}  // namespace lockstep::train

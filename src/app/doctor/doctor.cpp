#include "app/doctor/doctor.h"

#include <fmt/format.h>

#include "app/doctor/diagnose.h"
#include "app/doctor/facts.h"

namespace lockstep::app {

int run_doctor(DoctorFormat format) {
  const auto findings = diagnose(gather_facts());
  fmt::print("{}", format == DoctorFormat::kJson ? as_json(findings) : as_text(findings));
  return exit_code(findings);
}

}  // namespace lockstep::app

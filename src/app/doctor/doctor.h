// `lockstep doctor`: looks, judges, prints.
#pragma once

namespace lockstep::app {

enum class DoctorFormat { kText, kJson };

// Prints the findings on standard output. 0, or 1 when one of them makes Lockstep unusable here.
int run_doctor(DoctorFormat format);

}  // namespace lockstep::app

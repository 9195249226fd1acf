// The texts of --help.
#pragma once

namespace lockstep::app {

extern const char* const kHelp;
extern const char* const kRunHelp;
extern const char* const kDoctorHelp;

}  // namespace lockstep::app

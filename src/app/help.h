// The texts of --help.
#pragma once

namespace lockstep::app {

const char* help() noexcept;
const char* run_help() noexcept;
const char* doctor_help() noexcept;

}  // namespace lockstep::app

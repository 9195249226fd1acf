// What an exception means to a user. An Error says it itself. Other exceptions are told apart here, so that a bug is
// never taken for a lack of memory.
#pragma once

#include <exception>
#include <string>

namespace lockstep::base {

// An Error's own text, and that of the system's failures (std::system_error); "no memory left" for std::bad_alloc.
// Any other exception is a bug of Lockstep: the text says so, and asks for a report.
std::string diagnosis(const std::exception& error);

}  // namespace lockstep::base

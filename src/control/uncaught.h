// A program that throws BadInput or Mismatch, and does not catch it, would end by SIGABRT. In a job whose workers may leave,
// a signal means a crash: the worker is started again, and throws again. So such a program ends with a code instead, and
// its message: then the launcher ends the job.
#pragma once

namespace lockstep::control {

// From here on, in this process. Every other exception ends the program as before.
void end_with_code_if_uncaught();

}  // namespace lockstep::control

// The part of a job's report that its launcher writes: what has happened to its workers, and what it cost.
#pragma once

#include <cstdint>
#include <string>

#include "control/launch/options.h"

namespace lockstep::app {

// Runs the job, and then writes its report, if the options name one.
//
//   kWhole   the launcher's is all there is: `lockstep run --report`
//   kAdded   a worker writes it, and the launcher adds "events": `lockstep train --report`. If no worker has, because the
//            job failed or its leader was on another host, the file stays as it was
//
// Returns the exit code of the job. BadInput or Unavailable if all went well and the report cannot be written; else one
// line on standard error says so.
enum class ReportPart : std::uint8_t { kWhole, kAdded };
int run_with_report(control::RunOptions options, ReportPart part);

// BadInput, naming the option, for a path at which no file can be written.
void check_report_path(const std::string& option, const std::string& path);

}  // namespace lockstep::app

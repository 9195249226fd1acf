// `lockstep jobs`, `lockstep resize` and `lockstep stop`: the jobs of this user on this host.
#pragma once

#include <ctime>
#include <string>
#include <vector>

#include "control/launch/job_request.h"

namespace lockstep::app {

int list_jobs(const std::vector<std::string>& arguments);
int resize_job(const std::vector<std::string>& arguments);
int stop_job(const std::vector<std::string>& arguments);

// One line of `lockstep jobs`.
std::string job_line(const std::string& id, const control::JobFacts& facts);
std::string jobs_head();

}  // namespace lockstep::app

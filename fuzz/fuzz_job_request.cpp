// What a launcher is asked from another terminal, what it answers, and the list of sockets in which jobs are found.
#include <lockstep/errors.h>

#include <algorithm>
#include <string>

#include "control/launch/job_request.h"
#include "fuzz.h"

using namespace lockstep::control;
using lockstep::fuzz::require;

namespace {

bool is_plain(const std::string& text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return c >= 0 && c < ' '; });
}

void try_answer(std::string_view bytes) {
  const auto answer = decode_job_answer(bytes);
  if (!answer) return;
  require(decode_job_answer(encode(*answer)) == answer, "an answer is read back as it was written");
  require(is_plain(answer->refusal) && is_plain(answer->said) && is_plain(answer->facts.program),
          "a terminal shows the texts and does not obey them");
}

void try_names(std::string_view sockets) {
  const auto jobs = jobs_in(sockets);
  for (const JobName& job : jobs) {
    const std::string line = "0: 1 @" + socket_name(job) + "\n";
    require(jobs_in(line) == std::vector{job}, "a name is read back as it was written");
    try {
      require(find_job(jobs, job.user, job.id) == job, "a whole id finds its job");
    } catch (const lockstep::BadInput&) {
      require(false, "a whole id finds its job");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes = lockstep::fuzz::as_text(data, size);
  if (const auto request = decode_job_request(bytes)) {
    require(request->workers >= 0, "a number of workers is not negative");
    require(decode_job_request(encode(*request)) == request,
            "a request is read back as it was written");
  }
  try_answer(bytes);
  try_names(bytes);
  return 0;
}

#include "app/jobs.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <optional>

#include "base/choice.h"
#include "base/environment.h"
#include "control/launch/job_socket.h"
#include "control/launch/options.h"

namespace lockstep::app {
namespace {

constexpr char kJobsHelp[] =
    R"(Your jobs on this host, and how to change them from another terminal.

  lockstep jobs                what runs: id, workers, their limits, generation, since when, program
  lockstep resize [JOB] N      gives the job N workers, within its limits
  lockstep stop [JOB]          asks the job to end, as SIGTERM to its launcher does

JOB is an id that `lockstep jobs` shows, or the beginning of one. Without it your only job is meant.

A job can be resized if it was started with -n MIN:MAX, --min-workers or --max-restarts, and its program has a Job or a
Trainer. More workers join between two batches; of fewer, those with the highest numbers leave there. No step is lost.
On several hosts, ask on the first one; each host has as many workers at most as it began with.

Exit codes: 0 if it is done, 1 if the job refuses, 2 if there is no such job, or JOB can be none
)";

constexpr const char* kRow = "{:<6}{:>8}{:>10}{:>12}  {:<18}{}\n";

Deadline soon() {
  return Deadline::after(std::chrono::seconds(5));
}

std::string time_text(std::int64_t seconds) {
  const std::time_t time = seconds;
  std::tm local{};
  ::localtime_r(&time, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M", &local);
  return text.data();
}

int ask(const std::optional<std::string>& job_text, const control::JobRequest& request) {
  const control::JobName job =
      control::find_job(control::jobs_on_this_host(), ::geteuid(), job_text);
  const control::JobAnswer answer = control::ask_job(job, request, soon());
  if (!answer.refusal.empty()) {
    fmt::print(stderr, "lockstep: job {}: {}\n", job.id, answer.refusal);
    return 1;
  }
  fmt::print("job {} {}\n", job.id, answer.said);
  return 0;
}

bool helps(const std::vector<std::string>& arguments) {
  if (!base::asks_for_help(arguments)) return false;
  fmt::print("{}", kJobsHelp);
  return true;
}

}  // namespace

std::string jobs_head() {
  return fmt::format(fmt::runtime(kRow), "JOB", "WORKERS", "LIMITS", "GENERATION", "SINCE",
                     "PROGRAM");
}

std::string job_line(const std::string& id, const control::JobFacts& facts) {
  const std::string workers = facts.workers == facts.wanted
                                  ? fmt::to_string(facts.workers)
                                  : fmt::format("{}->{}", facts.workers, facts.wanted);
  const std::string limits =
      facts.most == 0 ? "fixed" : fmt::format("{}:{}", facts.least, facts.most);
  const std::string generation = facts.generation == 0 ? "-" : fmt::to_string(facts.generation);
  return fmt::format(fmt::runtime(kRow), id, workers, limits, generation, time_text(facts.since_s),
                     facts.program);
}

int list_jobs(const std::vector<std::string>& arguments) {
  if (helps(arguments)) return 0;
  if (!arguments.empty()) throw BadInput("`lockstep jobs` takes no arguments");
  std::string lines;
  for (const control::JobName& job : control::jobs_on_this_host()) {
    if (job.user != ::geteuid()) continue;
    try {
      lines += job_line(job.id, control::ask_job(job, {}, soon()).facts);
    } catch (const Unavailable& error) {  // it has just ended, or is stopped
      lines += fmt::format("{:<6}{}\n", job.id, error.what());
    }
  }
  fmt::print("{}", lines.empty() ? "no job of yours runs on this host\n" : jobs_head() + lines);
  return 0;
}

int resize_job(const std::vector<std::string>& arguments) {
  if (helps(arguments)) return 0;
  if (arguments.empty() || arguments.size() > 2)
    throw BadInput("`lockstep resize JOB N`: give the job and its number of workers");
  const auto workers = base::parse_number(arguments.back());
  if (!workers || *workers < 1 || *workers > control::kMostWorkers) {
    throw BadInput(
        fmt::format("{} is no number of workers; give 1 to {}, as in: lockstep resize JOB 4",
                    arguments.back(), control::kMostWorkers));
  }
  return ask(arguments.size() == 2 ? std::optional(arguments.front()) : std::nullopt,
             {control::JobRequest::Kind::kResize, static_cast<int>(*workers)});
}

int stop_job(const std::vector<std::string>& arguments) {
  if (helps(arguments)) return 0;
  if (arguments.size() > 1) throw BadInput("`lockstep stop JOB`: give one job");
  return ask(arguments.empty() ? std::nullopt : std::optional(arguments.front()),
             {control::JobRequest::Kind::kStop});
}

}  // namespace lockstep::app

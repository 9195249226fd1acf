// What `lockstep jobs`, `resize` and `stop` ask a launcher, and what it answers, as bytes. Pure.
//
//   request   one line: "lockstep 1 describe", "lockstep 1 resize 6", "lockstep 1 stop"
//   answer    lines of a word and a value, and then the end of the connection
//   JobName   the abstract socket at which a launcher is asked: "lockstep-job-USER-ID"
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::control {

struct JobRequest {
  enum class Kind : std::uint8_t { kDescribe, kResize, kStop };
  Kind kind = Kind::kDescribe;
  int workers = 0;  // of kResize

  bool operator==(const JobRequest&) const = default;
};

inline constexpr std::size_t kMostRequestBytes = 64;
inline constexpr std::size_t kMostAnswerBytes = 8192;

// What `lockstep jobs` shows of a job.
struct JobFacts {
  std::string program;  // with its arguments
  int workers = 0;      // whose processes run
  int least = 0;
  int most = 0;                  // 0: the number is fixed
  int wanted = 0;                // how many it is to have
  std::uint64_t generation = 0;  // the last that has formed; 0: none
  std::int64_t since_s = 0;      // when it began, in seconds of the system's clock

  bool operator==(const JobFacts&) const = default;
};

struct JobAnswer {
  std::string refusal;  // why it is not done; empty: it is
  std::string said;     // for the user
  JobFacts facts;

  bool operator==(const JobAnswer&) const = default;
};

std::string encode(const JobRequest& request);
std::string encode(const JobAnswer& answer);

// Nothing for bytes that are none. A request is a whole line, with its end.
std::optional<JobRequest> decode_job_request(std::string_view bytes);
std::optional<JobAnswer> decode_job_answer(std::string_view bytes);

struct JobName {
  std::uint32_t user = 0;
  std::string id;

  bool operator==(const JobName&) const = default;
};

// "lockstep-job-1000-3fa9"
std::string socket_name(const JobName& job);

// The jobs of all users in the text of /proc/net/unix, by id.
std::vector<JobName> jobs_in(std::string_view sockets);

// The job of this user that is meant: by its id, by the beginning of it, or without a text the only one. BadInput if there
// is none, or more than one, and for a text that no id can begin with: an empty one is a mistake of a script, and must not
// stop the only job.
JobName find_job(const std::vector<JobName>& jobs, std::uint32_t user,
                 const std::optional<std::string>& text);

}  // namespace lockstep::control

#include "control/launch/job_request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/environment.h"

namespace lockstep::control {
namespace {

constexpr std::string_view kGreeting = "lockstep 1 ";
constexpr std::string_view kSocketPrefix = "lockstep-job-";
constexpr std::size_t kMostTextBytes = 2000;
constexpr std::size_t kMostIdBytes = 16;
constexpr int kMostNumber = 1 << 20;

// One line of at most so many bytes, without characters that a terminal would obey.
std::string one_line(std::string_view text) {
  std::string line(text.substr(0, kMostTextBytes));
  std::replace_if(
      line.begin(), line.end(), [](char c) { return std::iscntrl(static_cast<unsigned char>(c)); },
      ' ');
  return line;
}

// The next line, which is taken off the front. Nothing if it has no end.
std::optional<std::string_view> take_line(std::string_view& bytes) {
  const auto end = bytes.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = bytes.substr(0, end);
  bytes.remove_prefix(end + 1);
  return line;
}

template <typename Number>
bool take_number(std::string_view text, std::int64_t most, Number& number) {
  const auto parsed = base::parse_number(text);
  if (!parsed || *parsed < 0 || *parsed > most) return false;
  number = static_cast<Number>(*parsed);
  return true;
}

// False for a value that cannot be. A word that is not known is left out: a later version may have more.
bool take_fact(std::string_view word, std::string_view value, JobAnswer& answer) {
  JobFacts& facts = answer.facts;
  if (word == "refused") answer.refusal = one_line(value);
  if (word == "said") answer.said = one_line(value);
  if (word == "program") facts.program = one_line(value);
  if (word == "workers") return take_number(value, kMostNumber, facts.workers);
  if (word == "least") return take_number(value, kMostNumber, facts.least);
  if (word == "most") return take_number(value, kMostNumber, facts.most);
  if (word == "wanted") return take_number(value, kMostNumber, facts.wanted);
  if (word == "generation") return take_number(value, INT64_MAX, facts.generation);
  if (word == "since") return take_number(value, std::int64_t{1} << 40, facts.since_s);
  return true;
}

bool is_id(std::string_view text) {
  return !text.empty() && text.size() <= kMostIdBytes &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; });
}

std::optional<JobName> parse_socket_name(std::string_view name) {
  if (!name.starts_with(kSocketPrefix)) return std::nullopt;
  name.remove_prefix(kSocketPrefix.size());
  const auto dash = name.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  JobName job{0, std::string(name.substr(dash + 1))};
  if (!take_number(name.substr(0, dash), UINT32_MAX, job.user) || !is_id(job.id))
    return std::nullopt;
  return job;
}

[[noreturn]] void refuse_job(const std::vector<JobName>& jobs, std::uint32_t user,
                             const std::optional<std::string>& text) {
  const auto theirs = std::find_if(jobs.begin(), jobs.end(), [&](const JobName& job) {
    return job.user != user && text && job.id.starts_with(*text);
  });
  if (theirs != jobs.end()) {
    throw BadInput(fmt::format("job {} belongs to user {}: only that user can ask for this",
                               theirs->id, theirs->user));
  }
  if (!text) throw BadInput("no job of yours runs on this host");
  throw BadInput(fmt::format("no job {} of yours runs on this host; see `lockstep jobs`", *text));
}

}  // namespace

std::string encode(const JobRequest& request) {
  switch (request.kind) {
    case JobRequest::Kind::kDescribe:
      return fmt::format("{}describe\n", kGreeting);
    case JobRequest::Kind::kResize:
      return fmt::format("{}resize {}\n", kGreeting, request.workers);
    case JobRequest::Kind::kStop:
      return fmt::format("{}stop\n", kGreeting);
  }
  return {};
}

std::string encode(const JobAnswer& answer) {
  const JobFacts& facts = answer.facts;
  std::string text;
  if (!answer.refusal.empty()) text += fmt::format("refused {}\n", one_line(answer.refusal));
  if (!answer.said.empty()) text += fmt::format("said {}\n", one_line(answer.said));
  return text + fmt::format(
                    "program {}\nworkers {}\nleast {}\nmost {}\nwanted {}\ngeneration {}\nsince "
                    "{}\nend \n",
                    one_line(facts.program), facts.workers, facts.least, facts.most, facts.wanted,
                    facts.generation, facts.since_s);
}

std::optional<JobRequest> decode_job_request(std::string_view bytes) {
  const auto line = take_line(bytes);
  if (!line || !bytes.empty() || !line->starts_with(kGreeting)) return std::nullopt;
  const std::string_view words = line->substr(kGreeting.size());
  constexpr std::string_view kResize = "resize ";
  if (words == "describe") return JobRequest{};
  if (words == "stop") return JobRequest{JobRequest::Kind::kStop};
  JobRequest request{JobRequest::Kind::kResize};
  if (!words.starts_with(kResize) ||
      !take_number(words.substr(kResize.size()), kMostNumber, request.workers))
    return std::nullopt;
  return request;
}

std::optional<JobAnswer> decode_job_answer(std::string_view bytes) {
  if (bytes.size() > kMostAnswerBytes) return std::nullopt;
  JobAnswer answer;
  while (const auto line = take_line(bytes)) {
    const auto blank = line->find(' ');
    if (blank == std::string_view::npos) return std::nullopt;
    const std::string_view word = line->substr(0, blank);
    if (word == "end") return bytes.empty() ? std::optional(answer) : std::nullopt;
    if (!take_fact(word, line->substr(blank + 1), answer)) return std::nullopt;
  }
  return std::nullopt;  // it was cut off
}

std::string socket_name(const JobName& job) {
  return fmt::format("{}{}-{}", kSocketPrefix, job.user, job.id);
}

std::vector<JobName> jobs_in(std::string_view sockets) {
  std::vector<JobName> jobs;
  while (const auto line = take_line(sockets)) {
    const auto at = line->rfind(" @");  // what follows is an abstract name
    if (at == std::string_view::npos) continue;
    const auto job = parse_socket_name(line->substr(at + 2));
    // A connection that a launcher has accepted is in the list, too.
    if (job && std::find(jobs.begin(), jobs.end(), *job) == jobs.end()) jobs.push_back(*job);
  }
  std::sort(jobs.begin(), jobs.end(),
            [](const JobName& a, const JobName& b) { return a.id < b.id; });
  return jobs;
}

JobName find_job(const std::vector<JobName>& jobs, std::uint32_t user,
                 const std::optional<std::string>& text) {
  if (text && !is_id(*text)) {
    throw BadInput(fmt::format(
        "\"{}\" is no id of a job; give one that `lockstep jobs` shows, or leave it out "
        "if you have one job only",
        one_line(*text)));
  }
  std::vector<JobName> meant;
  std::copy_if(jobs.begin(), jobs.end(), std::back_inserter(meant), [&](const JobName& job) {
    return job.user == user && job.id.starts_with(text.value_or(""));
  });
  const auto exact = std::find(meant.begin(), meant.end(), JobName{user, text.value_or("")});
  if (exact != meant.end()) return *exact;
  if (meant.size() == 1) return meant.front();
  if (meant.empty()) refuse_job(jobs, user, text);
  std::vector<std::string> ids;
  ids.reserve(meant.size());
  for (const JobName& job : meant) ids.push_back(job.id);
  throw BadInput(fmt::format("which job? {}; see `lockstep jobs`", fmt::join(ids, ", ")));
}

}  // namespace lockstep::control

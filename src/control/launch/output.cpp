#include "control/launch/output.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>

#include "base/environment.h"

namespace lockstep::control {
namespace {

constexpr std::chrono::milliseconds kPollInterval{20};

constexpr const char* kClearLine = "\r\033[K";

bool is_terminal(int fd) {
  return ::isatty(fd) == 1 && base::environment("TERM") != "dumb";
}

}  // namespace

bool wants_colour(int fd) {
  return is_terminal(fd) && !base::environment("NO_COLOR");
}

Output::Output(boost::asio::io_context& context, int workers, KeeperPlan& plan,
               std::vector<LogFile> logs)
    : context_(context),
      outlets_(open_outlets(context)),
      before_note_(plan.leader_keeps_output && is_terminal(STDERR_FILENO) ? kClearLine : ""),
      poll_(context) {
  const std::array<bool, 2> colour = {wants_colour(STDOUT_FILENO), wants_colour(STDERR_FILENO)};
  for (int stream = 0; stream < 2 * workers; ++stream) {
    const int rank = stream / 2;
    const bool is_err = stream % 2 == 1;
    const auto index = static_cast<std::size_t>(stream);
    if (!is_err) tails_.push_back(std::make_shared<Tail>());
    StreamTargets targets;
    targets.outlet = is_err ? outlets_.err : outlets_.out;
    targets.prefix = line_prefix(rank, workers, colour[is_err ? 1 : 0]);
    targets.tail = tails_.back();
    targets.most_line_bytes = line_limit(2 * workers);
    log_paths_.push_back(logs.empty() ? "" : logs[index].path);
    if (!logs.empty()) targets.log = std::move(logs[index].file);
    streams_.push_back(std::make_unique<WorkerStream>(context, std::move(plan.outputs[index].read),
                                                      std::move(targets)));
  }
}

void Output::start() {
  // Posted: the outlet tells in the middle of a write, where a stream must not be entered again.
  for (const auto& outlet : {outlets_.out, outlets_.err}) {
    outlet->when_drained = [this] { boost::asio::post(context_, [this] { resume_streams(); }); };
    outlet->when_closed = [this, from = outlet.get()] {
      boost::asio::post(context_, [this, error = from->error()] { when_closed(error); });
    };
  }
  for (const auto& stream : streams_) stream->start();
}

void Output::note(std::string_view line) {
  Outlet& outlet = outlets_.err->closed() ? *outlets_.out : *outlets_.err;
  outlet.add(before_note_);
  outlet.add(line);
  outlet.add("\n");
  outlet.flush();
}

void Output::resume_streams() {
  for (const auto& stream : streams_) stream->resume();
}

void Output::drain(std::chrono::milliseconds patience, std::function<void()> then) {
  for (const auto& stream : streams_) stream->expect_end();
  check({.done = [this] { return all_read(); }, .then = std::move(then), .patience = patience});
}

void Output::flush(std::chrono::milliseconds patience, std::function<void()> then) {
  check({.done = [this] { return all_written(); }, .then = std::move(then), .patience = patience});
}

// Looks at once, and every 20 ms as long as the readers are slow.
void Output::check(Wait wait) {
  const auto now = std::chrono::steady_clock::now();
  if (written() != wait.written) {
    wait.written = written();
    wait.progress_at = now;
  }
  if (wait.done() || now - wait.progress_at > wait.patience) return wait.then();
  poll_.expires_after(kPollInterval);
  poll_.async_wait([this, wait = std::move(wait)](const boost::system::error_code& error) mutable {
    if (!error) check(std::move(wait));
  });
}

bool Output::all_read() const {
  return std::all_of(streams_.begin(), streams_.end(),
                     [](const auto& stream) { return stream->ended(); });
}

bool Output::all_written() const {
  return outlets_.out->empty() && outlets_.err->empty();
}

std::uint64_t Output::written() const {
  return outlets_.out->written() + outlets_.err->written();
}

std::size_t Output::waiting() const {
  return outlets_.out->waiting() + (outlets_.err == outlets_.out ? 0 : outlets_.err->waiting());
}

std::vector<LostOutput> Output::lost() const {
  std::vector<LostOutput> lost;
  const auto& [out, err] = outlets_;
  if (out->closed()) lost.push_back({"standard output", out->error(), out->dropped()});
  if (err != out && err->closed()) {
    lost.push_back({"standard error", err->error(), err->dropped()});
  }
  return lost;
}

const std::deque<std::string>& Output::last_lines(int rank) const {
  return tails_[static_cast<std::size_t>(rank)]->lines();
}

std::vector<std::string> Output::failed_logs() const {
  std::vector<std::string> paths;
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i]->log_failed()) paths.push_back(log_paths_[i]);
  }
  return paths;
}

}  // namespace lockstep::control

#include "control/launch/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>

#include "base/environment.h"

namespace lockstep::control {

using boost::asio::posix::stream_descriptor;

// ---- Lines --------------------------------------------------------------------------------------------------------

void LineSplitter::feed(std::string_view bytes, Clock::time_point now, const Sink& sink) {
  while (!bytes.empty()) {
    if (after_return_ && bytes.front() != '\n' && bytes.front() != '\r') start_again(now, sink);
    const auto end = std::min(bytes.find_first_of("\r\n"), bytes.size());
    append(bytes.substr(0, end), sink);
    bytes.remove_prefix(end);
    if (bytes.empty()) return;
    after_return_ = bytes.front() == '\r';
    if (bytes.front() == '\n') end_line(sink);
    bytes.remove_prefix(1);
  }
}

void LineSplitter::finish(const Sink& sink) {
  if (!line_.empty()) end_line(sink);
  after_return_ = after_cut_ = false;
}

void LineSplitter::append(std::string_view text, const Sink& sink) {
  while (line_.size() + text.size() > most_bytes_) {
    const std::size_t room = most_bytes_ - line_.size();
    line_.append(text.substr(0, room));
    text.remove_prefix(room);
    sink(line_);
    line_.clear();
    after_cut_ = true;
  }
  line_.append(text);
}

void LineSplitter::end_line(const Sink& sink) {
  if (!line_.empty() || !after_cut_) sink(line_);
  line_.clear();
  after_cut_ = false;
  // A long line should not hold its memory for the rest of the job.
  constexpr std::size_t kKeptBytes = std::size_t{16} << 10;
  if (line_.capacity() > kKeptBytes) line_.shrink_to_fit();
}

void LineSplitter::start_again(Clock::time_point now, const Sink& sink) {
  constexpr std::chrono::seconds kBetweenReplaced{1};
  after_return_ = false;
  if (!line_.empty() && now >= next_replaced_) {
    sink(line_);
    next_replaced_ = now + kBetweenReplaced;
  }
  line_.clear();
  after_cut_ = false;
}

std::size_t line_limit(int streams) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  constexpr std::size_t kTogether = std::size_t{128} << 20;
  return std::min(kMost, kTogether / static_cast<std::size_t>(std::max(streams, 1)));
}

std::string line_prefix(int rank, int workers, bool colour) {
  const auto width = fmt::formatted_size("{}", workers - 1);
  std::string plain = fmt::format("[{:>{}}] ", rank, width);
  if (!colour) return plain;
  // Cyan, yellow, green, magenta, blue: red is left to errors.
  constexpr int kColours[] = {36, 33, 32, 35, 34};
  return fmt::format("\x1b[{}m{}\x1b[0m",
                     kColours[static_cast<std::size_t>(rank) % std::size(kColours)], plain);
}

void Tail::add(std::string_view line) {
  constexpr std::size_t kLines = 10;
  constexpr std::size_t kLineBytes = 400;
  if (lines_.size() == kLines) lines_.pop_front();
  lines_.emplace_back(line.substr(0, kLineBytes));
}

// ---- Outlets: the launcher's own standard output and error ----------------------------------------------------------

namespace {

constexpr std::size_t kFullBytes = std::size_t{1} << 20;
constexpr std::size_t kPieceBytes = 4096;  // a pipe that is ready has room for this much
constexpr std::chrono::milliseconds kPollInterval{20};

bool may_not_be_ready(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return false;
  return S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode) || ::isatty(fd) == 1;
}

bool same_file(int first, int second) {
  struct stat one {};
  struct stat other {};
  return ::fstat(first, &one) == 0 && ::fstat(second, &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

// Whether both are the same terminal. If /dev/tty or the master of a terminal is opened again, it may
// be another terminal, and only this number shows it.
bool same_terminal(int first, int second) {
  unsigned int devices[2] = {};
  return ::ioctl(first, TIOCGDEV, &devices[0]) == 0 &&
         ::ioctl(second, TIOCGDEV, &devices[1]) == 0 && devices[0] == devices[1];
}

// Opens the pipe or terminal behind `fd` a second time: O_NONBLOCK belongs to what open() makes, and
// everybody who inherited `fd` shares that. None if it is refused: a socket, a terminal of another
// user, no /proc.
base::Fd open_again(int fd) {
  base::Fd own(::open(fmt::format("/proc/self/fd/{}", fd).c_str(),
                      O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (own && ::isatty(fd) == 1 && !same_terminal(fd, own.get())) own.reset();
  return own;
}

// An epoll descriptor that is readable when `fd` is writable. Asio makes a descriptor that it waits for non-blocking,
// which must not happen to one that others share. So it waits for this one.
int readable_when_writable(int fd) {
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLOUT;
  if (epoll < 0 || ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    throw Unavailable("cannot watch standard output; raise `ulimit -n`");
  }
  return epoll;
}

// What an outlet writes to.
//
// The flags of the given descriptor stay as they are: others share it, and a non-blocking terminal would break the
// user's shell. So a pipe or terminal is opened a second time, non-blocking. If that fails, the given descriptor is
// used, and gets at most what a pipe has room for when poll(2) calls it ready.
struct Destination {
  explicit Destination(int given)
      : waits(may_not_be_ready(given)),
        own(waits ? open_again(given) : base::Fd()),
        fd(own ? own.get() : given) {}

  bool ready() const {
    if (!waits) return true;
    pollfd entry{fd, POLLOUT, 0};
    return ::poll(&entry, 1, 0) > 0;
  }

  bool waits;    // pipe, socket or terminal: may not be ready
  base::Fd own;  // may be none
  int fd;
};

// Bytes that wait to be written, in order. It moves its bytes to the front only now and then, because that copies them.
class ByteQueue {
 public:
  void add(std::string_view bytes) { bytes_.append(bytes); }
  std::string_view waiting() const { return std::string_view(bytes_).substr(taken_); }
  void take(std::size_t count) {  // from the front
    taken_ += count;
    if (taken_ < bytes_.size() && taken_ < kFullBytes) return;
    bytes_.erase(0, taken_);
    taken_ = 0;
  }

 private:
  std::string bytes_;
  std::size_t taken_ = 0;
};

}  // namespace

// A queue of bytes in front of a descriptor. Tells its owner when it has room again, and once if a write fails.
class Output::Outlet {
 public:
  Outlet(Output& owner, int fd)
      : owner_(owner), to_(fd), readiness_(owner.context_), retry_(owner.context_) {
    if (to_.waits) readiness_.assign(readable_when_writable(to_.fd));
  }

  void add(std::string_view bytes) {
    if (closed()) {
      dropped_ += bytes.size();
    } else {
      queue_.add(bytes);
    }
  }
  void flush();

  bool full() const { return !closed() && waiting() >= kFullBytes; }
  std::size_t waiting() const { return queue_.waiting().size(); }
  bool closed() const { return error_ != 0; }
  std::uint64_t written() const { return written_; }
  LostOutput lost(const char* name) const { return {name, error_, dropped_}; }

 private:
  bool write_piece();
  void wait_until_ready();
  void close(int error);

  Output& owner_;
  Destination to_;
  stream_descriptor readiness_;
  boost::asio::steady_timer retry_;
  ByteQueue queue_;
  std::uint64_t written_ = 0;
  std::uint64_t dropped_ = 0;
  bool waiting_ = false;
  bool refused_ = false;  // it was ready, and took nothing
  bool was_full_ = false;
  int error_ = 0;  // errno of the write that failed; 0 while none has
};

void Output::Outlet::flush() {
  was_full_ = was_full_ || full();
  while (!closed() && waiting() > 0) {
    if (!to_.ready() || !write_piece()) break;
  }
  if (closed()) {
    dropped_ += waiting();
    queue_.take(waiting());
  }
  if (waiting() > 0) wait_until_ready();
  if (was_full_ && waiting() < kFullBytes / 2) {
    was_full_ = false;
    // Posted, here and in close(): a stream may be the caller, and must not be entered a second time.
    boost::asio::post(owner_.context_, [&owner = owner_] { owner.resume_streams(); });
  }
}

// False when the rest has to wait.
bool Output::Outlet::write_piece() {
  const std::size_t most = to_.waits ? std::min(waiting(), kPieceBytes) : waiting();
  const ssize_t sent = ::write(to_.fd, queue_.waiting().data(), most);
  if (sent >= 0) {
    queue_.take(static_cast<std::size_t>(sent));
    written_ += static_cast<std::uint64_t>(sent);
    return true;
  }
  if (errno == EINTR) return true;
  refused_ = errno == EAGAIN && to_.waits;
  if (!refused_) close(errno);
  return false;
}

void Output::Outlet::wait_until_ready() {
  if (waiting_ || !to_.waits) return;
  waiting_ = true;
  auto go_on = [this](const boost::system::error_code& error) {
    waiting_ = false;
    if (!error) flush();
  };
  // A terminal may be ready for poll(2) and still refuse the next byte. Waiting for it would spin: ask again later.
  if (std::exchange(refused_, false)) {
    retry_.expires_after(kPollInterval);
    retry_.async_wait(std::move(go_on));
  } else {
    readiness_.async_wait(stream_descriptor::wait_read, std::move(go_on));
  }
}

void Output::Outlet::close(int error) {
  error_ = error;
  boost::asio::post(owner_.context_, [&owner = owner_, error] { owner.when_closed(error); });
}

// ---- Streams: one of a worker's two outputs -------------------------------------------------------------------------

namespace {

// Shared by all streams: there is one thread, and a stream uses its bytes up before the next one reads.
std::array<char, std::size_t{64} << 10> read_buffer;

using LineFilter = std::function<bool(std::string_view)>;  // true: the line is not shown

struct Targets {
  std::string prefix;
  LogFile log;  // the bytes as they come; may be none
  std::size_t most_line_bytes = 0;
  LineFilter taken = nullptr;
};

}  // namespace

// Reads the pipe, passes whole lines on, and stops reading while the outlet is full.
class Output::Stream {
 public:
  Stream(boost::asio::io_context& context, base::Fd pipe, Outlet& outlet, Tail& tail,
         Targets targets)
      : pipe_(context),
        outlet_(outlet),
        targets_(std::move(targets)),
        splitter_(targets_.most_line_bytes) {
    base::set_nonblocking(pipe.get());
    pipe_.assign(pipe.release());
    sink_ = [this, &tail](std::string_view line) {
      if (targets_.taken && targets_.taken(line)) return;
      tail.add(line);
      outlet_.add(targets_.prefix);
      outlet_.add(line);
      outlet_.add("\n");
    };
  }

  // Reads when there is something, or at once if the end is expected.
  void resume();

  // No process holds the other end any more: what the pipe still has is all there will be.
  void expect_end() {
    expect_end_ = true;
    if (!ended()) read_some();
  }

  // Its writer has died, and another one may follow: takes what is there, and ends the last line.
  void end_line();

  bool ended() const { return !pipe_.is_open(); }
  const std::string& failed_log() const { return failed_log_; }

 private:
  void read_some();
  void take(std::string_view bytes);
  void end();

  stream_descriptor pipe_;
  Outlet& outlet_;
  Targets targets_;
  LineSplitter splitter_;
  LineSplitter::Sink sink_;
  bool waiting_ = false;
  bool expect_end_ = false;
  std::string failed_log_;  // its path
};

void Output::Stream::resume() {
  if (ended() || waiting_) return;
  if (expect_end_) return read_some();
  waiting_ = true;
  pipe_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
    waiting_ = false;
    if (!error && !ended()) read_some();
  });
}

void Output::Stream::read_some() {
  // At the end everything is read at once. Before that, other streams have their turn after each read.
  while (!outlet_.full()) {
    const ssize_t got = ::read(pipe_.native_handle(), read_buffer.data(), read_buffer.size());
    if (got > 0) {
      take({read_buffer.data(), static_cast<std::size_t>(got)});
      if (!expect_end_) return resume();
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN && !expect_end_) return resume();
    return end();
  }
}

void Output::Stream::end_line() {
  while (!ended() && !outlet_.full()) {
    const ssize_t got = ::read(pipe_.native_handle(), read_buffer.data(), read_buffer.size());
    if (got > 0) take({read_buffer.data(), static_cast<std::size_t>(got)});
    if (got > 0 || (got < 0 && errno == EINTR)) continue;
    splitter_.finish(sink_);
    return outlet_.flush();
  }
}

void Output::Stream::take(std::string_view bytes) {
  base::Fd& log = targets_.log.file;
  if (log && !base::write_all(log.get(), bytes, Deadline::after(std::chrono::seconds(10)))) {
    log.reset();
    failed_log_ = targets_.log.path;
  }
  splitter_.feed(bytes, LineSplitter::Clock::now(), sink_);
  outlet_.flush();
}

void Output::Stream::end() {
  boost::system::error_code ignored;
  pipe_.close(ignored);
  targets_.log.file.reset();
  splitter_.finish(sink_);
  outlet_.flush();
}

// ---- All of it ------------------------------------------------------------------------------------------------------

namespace {

bool is_terminal(int fd) {
  return ::isatty(fd) == 1 && base::environment("TERM") != "dumb";
}

bool wants_colour(int fd) {
  return is_terminal(fd) && !base::environment("NO_COLOR");
}

constexpr const char* kClearLine = "\r\033[K";

}  // namespace

Output::Output(boost::asio::io_context& context, KeeperPlan& plan, const LinePrefix& prefix,
               std::vector<LogFile> logs)
    : context_(context),
      out_(std::make_shared<Outlet>(*this, STDOUT_FILENO)),
      err_(same_file(STDOUT_FILENO, STDERR_FILENO)
               ? out_
               : std::make_shared<Outlet>(*this, STDERR_FILENO)),
      before_note_(plan.leader_keeps_output && is_terminal(STDERR_FILENO) ? kClearLine : ""),
      tails_(static_cast<std::size_t>(plan.places())),
      poll_(context) {
  logs.resize(plan.outputs.size());
  for (std::size_t stream = 0; stream < plan.outputs.size(); ++stream) {
    const auto worker = stream / 2;
    const bool is_err = stream % 2 == 1;
    const LineFilter taken = [this, worker](std::string_view line) {
      return takes_line && takes_line(static_cast<int>(worker), line);
    };
    const bool colour = wants_colour(is_err ? STDERR_FILENO : STDOUT_FILENO);
    streams_.push_back(std::make_unique<Stream>(
        context, std::move(plan.outputs[stream].read), is_err ? *err_ : *out_, tails_[worker],
        Targets{prefix(static_cast<int>(worker), colour), std::move(logs[stream]),
                line_limit(2 * plan.places()), is_err ? nullptr : taken}));
  }
}

Output::~Output() = default;

void Output::resume_streams() {
  for (const auto& stream : streams_) stream->resume();
}

void Output::note(std::string_view line) {
  Outlet& outlet = err_->closed() ? *out_ : *err_;
  outlet.add(before_note_);
  outlet.add(line);
  outlet.add("\n");
  outlet.flush();
}

void Output::end_lines(int worker) {
  for (const std::size_t stream : {0, 1})
    streams_[2 * static_cast<std::size_t>(worker) + stream]->end_line();
}

void Output::drain(std::chrono::milliseconds patience, std::function<void()> then) {
  for (const auto& stream : streams_) stream->expect_end();
  const auto all_read = [this] {
    return std::all_of(streams_.begin(), streams_.end(),
                       [](const auto& stream) { return stream->ended(); });
  };
  check({.done = all_read, .then = std::move(then), .patience = patience});
}

void Output::flush(std::chrono::milliseconds patience, std::function<void()> then) {
  check({.done = [this] { return waiting() == 0; }, .then = std::move(then), .patience = patience});
}

// Looks at once, and again every 20 ms while the readers are slow.
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

std::uint64_t Output::written() const {
  return out_->written() + err_->written();
}

std::size_t Output::waiting() const {
  return out_->waiting() + (err_ == out_ ? 0 : err_->waiting());
}

std::vector<LostOutput> Output::lost() const {
  std::vector<LostOutput> lost;
  if (out_->closed()) lost.push_back(out_->lost("standard output"));
  if (err_ != out_ && err_->closed()) lost.push_back(err_->lost("standard error"));
  return lost;
}

const std::deque<std::string>& Output::last_lines(int worker) const {
  return tails_[static_cast<std::size_t>(worker)].lines();
}

std::vector<std::string> Output::failed_logs() const {
  std::vector<std::string> paths;
  for (const auto& stream : streams_) {
    if (!stream->failed_log().empty()) paths.push_back(stream->failed_log());
  }
  return paths;
}

}  // namespace lockstep::control

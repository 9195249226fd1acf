#include "control/launch/job_socket.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/hash.h"
#include "base/log.h"
#include "control/rendezvous/sockets.h"

namespace lockstep::control {
namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

constexpr std::chrono::seconds kMostForCaller{5};
constexpr std::size_t kMostCallers = 32;  // the oldest gives way
constexpr int kMostAtOnce = 16;           // then other events have their turn
constexpr std::chrono::milliseconds kPauseWithoutDescriptors{100};
constexpr std::chrono::milliseconds kPauseToAskAgain{20};
constexpr int kMostIdAttempts = 16;
constexpr std::size_t kIdBytes = 2;  // 4 letters: short to type

// Who asked and did not wait was told that the job does not answer: nothing is to be done then, later.
bool has_gone(int fd) {
  pollfd entry{fd, POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

// What a launcher says to one connection; nothing if it was dropped, or at the deadline.
std::string answer_of(int fd, const JobRequest& request, Deadline deadline) {
  std::string bytes;
  if (!base::write_all(fd, encode(request), deadline)) return bytes;
  std::array<char, 1024> some;
  while (bytes.size() <= kMostAnswerBytes && base::wait_ready(fd, POLLIN, deadline)) {
    const ssize_t got = ::read(fd, some.data(), some.size());
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) break;
    bytes.append(some.data(), static_cast<std::size_t>(got));
  }
  return bytes;
}

}  // namespace

// One connection: a line comes, an answer goes. What does not fit into the socket's buffer at once is dropped: an answer is
// far smaller.
class JobSocket::Caller : public std::enable_shared_from_this<Caller> {
 public:
  Caller(JobSocket& socket, std::uint64_t number, base::Fd fd)
      : socket_(socket),
        number_(number),
        connection_(socket.context_, fd.release()),
        limit_(socket.context_) {}

  void start() {
    limit_.expires_after(kMostForCaller);
    limit_.async_wait([self = shared_from_this()](error_code error) {
      if (!error) self->end();
    });
    read();
  }

  void cut() {
    limit_.cancel();
    error_code ignored;
    connection_.close(ignored);
  }

 private:
  void read() {
    connection_.async_wait(stream_descriptor::wait_read,
                           [self = shared_from_this()](error_code error) {
                             if (!error) self->take();
                           });
  }

  void take() {
    std::array<char, kMostRequestBytes> bytes;
    const ssize_t got = ::read(connection_.native_handle(), bytes.data(), bytes.size());
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return read();
    if (got <= 0) return end();
    text_.append(bytes.data(), static_cast<std::size_t>(got));
    if (text_.size() > kMostRequestBytes) return end();
    if (text_.find('\n') == std::string::npos) return read();
    const auto request = decode_job_request(text_);
    if (request && !has_gone(connection_.native_handle())) {
      const std::string answer = encode(socket_.answer_(*request));
      ::send(connection_.native_handle(), answer.data(), answer.size(),
             MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    end();
  }

  void end() {
    const auto self = shared_from_this();
    socket_.callers_.erase(number_);
    cut();
  }

  JobSocket& socket_;
  std::uint64_t number_;
  stream_descriptor connection_;
  boost::asio::steady_timer limit_;
  std::string text_;
};

JobSocket::JobSocket(boost::asio::io_context& context, Answer answer)
    : context_(context), answer_(std::move(answer)), listening_(context), pause_(context) {
  for (int attempt = 0; attempt < kMostIdAttempts; ++attempt) {
    const JobName job{::geteuid(), base::to_hex(base::random_bytes(kIdBytes))};
    try {
      listening_.assign(listen_unix(socket_name(job)).fd.release());
      id_ = job.id;
      wait();
      return;
    } catch (const BadInput&) {  // another job has this id
    } catch (const std::exception& error) {
      base::log(base::LogLevel::kWarn, "this job is not listed: {}", error.what());
      return;
    }
  }
}

JobSocket::~JobSocket() {
  for (const auto& [number, caller] : callers_) caller->cut();
}

void JobSocket::wait() {
  listening_.async_wait(stream_descriptor::wait_read, [this](error_code error) {
    if (!error) admit_all();
  });
}

// Without descriptors nobody can be accepted, but the socket stays readable: waiting for it would spin.
void JobSocket::pause() {
  pause_.expires_after(kPauseWithoutDescriptors);
  pause_.async_wait([this](error_code error) {
    if (!error) admit_all();
  });
}

void JobSocket::admit_all() {
  int error = 0;
  for (int i = 0; i < kMostAtOnce && error == 0; ++i) error = admit();
  const bool none_free = error != 0 && error != EAGAIN;
  if (none_free && !drop_oldest()) return pause();
  wait();
}

// 0, or the errno that says why nobody came in.
int JobSocket::admit() {
  base::Fd fd(
      ::accept4(listening_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd) return errno == EINTR || errno == ECONNABORTED ? 0 : errno;
  if (peer_credentials(fd.get()).uid != ::geteuid()) return 0;
  if (callers_.size() >= kMostCallers) drop_oldest();
  const std::uint64_t number = ++last_caller_;
  const auto caller = std::make_shared<Caller>(*this, number, std::move(fd));
  callers_.emplace(number, caller);
  caller->start();
  return 0;
}

// Each of them waits for its request: an answer goes out at once. False if there is none.
bool JobSocket::drop_oldest() {
  if (callers_.empty()) return false;
  callers_.extract(callers_.begin()).mapped()->cut();
  return true;
}

std::vector<JobName> jobs_on_this_host() {
  std::ifstream file("/proc/net/unix");
  return jobs_in(std::string(std::istreambuf_iterator<char>(file), {}));
}

JobAnswer ask_job(const JobName& job, const JobRequest& request, Deadline deadline) {
  while (true) {
    std::string problem;
    const base::Fd fd = try_connect({Address::Kind::kUnix, socket_name(job), 0}, deadline, problem);
    if (!fd) throw Unavailable(fmt::format("job {} does not answer: {}", job.id, problem));
    const std::string bytes = answer_of(fd.get(), request, deadline);
    if (auto answer = decode_job_answer(bytes)) return *answer;
    if (!bytes.empty() || deadline.expired()) break;
    std::this_thread::sleep_for(kPauseToAskAgain);
  }
  throw Unavailable(fmt::format(
      "job {} does not answer; has its launcher been stopped, by Ctrl-Z or a debugger?", job.id));
}

}  // namespace lockstep::control

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

#include "base/hash.h"
#include "base/log.h"
#include "control/rendezvous/sockets.h"

namespace lockstep::control {
namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

constexpr std::chrono::seconds kMostForCaller{5};
constexpr std::size_t kMostCallers = 16;
constexpr int kMostIdAttempts = 16;
constexpr std::size_t kIdBytes = 2;  // 4 letters: short to type

}  // namespace

// One connection: a line comes, an answer goes. What does not fit into the socket's buffer at once is dropped: an answer is
// far smaller.
class JobSocket::Caller : public std::enable_shared_from_this<Caller> {
 public:
  Caller(JobSocket& socket, base::Fd fd)
      : socket_(socket), connection_(socket.context_, fd.release()), limit_(socket.context_) {}

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
    if (const auto request = decode_job_request(text_)) {
      const std::string answer = encode(socket_.answer_(*request));
      ::send(connection_.native_handle(), answer.data(), answer.size(),
             MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    end();
  }

  void end() {
    const auto self = shared_from_this();
    socket_.callers_.erase(self);
    cut();
  }

  JobSocket& socket_;
  stream_descriptor connection_;
  boost::asio::steady_timer limit_;
  std::string text_;
};

JobSocket::JobSocket(boost::asio::io_context& context, Answer answer)
    : context_(context), answer_(std::move(answer)), listening_(context) {
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
  for (const auto& caller : callers_) caller->cut();
}

void JobSocket::wait() {
  listening_.async_wait(stream_descriptor::wait_read, [this](error_code error) {
    if (error) return;
    admit();
    wait();
  });
}

void JobSocket::admit() {
  base::Fd fd(
      ::accept4(listening_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd || peer_credentials(fd.get()).uid != ::geteuid() || callers_.size() >= kMostCallers)
    return;
  const auto caller = *callers_.insert(std::make_shared<Caller>(*this, std::move(fd))).first;
  caller->start();
}

std::vector<JobName> jobs_on_this_host() {
  std::ifstream file("/proc/net/unix");
  return jobs_in(std::string(std::istreambuf_iterator<char>(file), {}));
}

JobAnswer ask_job(const JobName& job, const JobRequest& request, Deadline deadline) {
  std::string problem;
  const base::Fd fd = try_connect({Address::Kind::kUnix, socket_name(job), 0}, deadline, problem);
  if (!fd) throw Unavailable(fmt::format("job {} does not answer: {}", job.id, problem));
  std::string bytes;
  if (base::write_all(fd.get(), encode(request), deadline)) {
    std::array<char, 1024> some;
    while (bytes.size() <= kMostAnswerBytes && base::wait_ready(fd.get(), POLLIN, deadline)) {
      const ssize_t got = ::read(fd.get(), some.data(), some.size());
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got <= 0) break;
      bytes.append(some.data(), static_cast<std::size_t>(got));
    }
  }
  if (auto answer = decode_job_answer(bytes)) return *answer;
  throw Unavailable(fmt::format(
      "job {} does not answer; has its launcher been stopped, by Ctrl-Z or a debugger?", job.id));
}

}  // namespace lockstep::control

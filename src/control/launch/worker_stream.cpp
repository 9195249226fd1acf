#include "control/launch/worker_stream.h"

#include <unistd.h>

#include <array>
#include <cerrno>

namespace lockstep::control {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;
// Shared by all streams: each one's bytes are used up before the next one reads.
std::array<char, kReadBytes> read_buffer;

}  // namespace

WorkerStream::WorkerStream(boost::asio::io_context& context, base::Fd pipe, StreamTargets targets)
    : pipe_(context), targets_(std::move(targets)), splitter_(targets_.most_line_bytes) {
  base::set_nonblocking(pipe.get());
  pipe_.assign(pipe.release());
  sink_ = [this](std::string_view line) {
    targets_.tail->add(line);
    targets_.outlet->add(targets_.prefix);
    targets_.outlet->add(line);
    targets_.outlet->add("\n");
  };
}

void WorkerStream::resume() {
  if (ended() || waiting_) return;
  if (expect_end_) {
    read_some();
  } else {
    wait();
  }
}

void WorkerStream::expect_end() {
  expect_end_ = true;
  if (!ended()) read_some();
}

void WorkerStream::wait() {
  waiting_ = true;
  pipe_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                   [this](const boost::system::error_code& error) {
                     waiting_ = false;
                     if (!error && !ended()) read_some();
                   });
}

void WorkerStream::read_some() {
  // While the end is awaited everything is taken at once; before, each stream has its turn.
  while (!targets_.outlet->full()) {
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

void WorkerStream::take(std::string_view bytes) {
  if (targets_.log &&
      !base::write_all(targets_.log.get(), bytes, Deadline::after(std::chrono::seconds(10)))) {
    targets_.log.reset();
    log_failed_ = true;
  }
  splitter_.feed(bytes, LineSplitter::Clock::now(), sink_);
  targets_.outlet->flush();
}

void WorkerStream::end() {
  boost::system::error_code ignored;
  pipe_.close(ignored);
  targets_.log.reset();
  splitter_.finish(sink_);
  targets_.outlet->flush();
}

}  // namespace lockstep::control

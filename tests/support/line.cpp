#include "tests/support/line.h"

#include <lockstep/errors.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <new>
#include <random>
#include <string>

namespace lockstep::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostFrame = 65536;
constexpr std::size_t kEthernet = 14;
constexpr std::size_t kMostQueued = 4096;  // frames; more are lost
constexpr std::size_t kPlaceOfChecksum = 16;

std::uint16_t word_at(const std::string& frame, std::size_t at) {
  return static_cast<std::uint16_t>((static_cast<unsigned char>(frame[at]) << 8) |
                                    static_cast<unsigned char>(frame[at + 1]));
}

void set_word(std::string& frame, std::size_t at, std::uint16_t word) {
  frame[at] = static_cast<char>(word >> 8);
  frame[at + 1] = static_cast<char>(word & 0xff);
}

// Where the TCP header of a frame begins, and its payload; `payload` is the frame's end if there is none.
struct Segment {
  std::size_t header = 0;
  std::size_t payload = 0;
  std::size_t end = 0;
};
Segment segment_in(const std::string& frame) {
  constexpr std::uint16_t kIpv4 = 0x0800;
  constexpr char kTcp = 6;
  if (frame.size() < kEthernet + 40 || word_at(frame, 12) != kIpv4 || frame[23] != kTcp) return {};
  Segment found;
  found.header = kEthernet + 4 * static_cast<std::size_t>(frame[kEthernet] & 0xf);
  found.end = std::min(frame.size(), kEthernet + word_at(frame, 16));
  if (found.header + 20 > found.end) return {};
  found.payload =
      found.header + 4 * static_cast<std::size_t>((frame[found.header + 12] >> 4) & 0xf);
  return found;
}

// False if there is no whole word of payload. The checksum is updated as in RFC 1624.
bool flip_in(std::string& frame, std::mt19937& random) {
  const Segment segment = segment_in(frame);
  if (segment.payload + 4 > segment.end) return false;
  const std::size_t words = (segment.end - segment.payload) / 2;
  const std::size_t at = segment.payload + 2 * (random() % words);
  const std::uint16_t before = word_at(frame, at);
  const auto after = static_cast<std::uint16_t>(before ^ (1U << (random() % 16)));
  const std::size_t place = segment.header + kPlaceOfChecksum;
  std::uint32_t sum = static_cast<std::uint16_t>(~word_at(frame, place));
  sum += static_cast<std::uint16_t>(~before);
  sum += after;
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  set_word(frame, at, after);
  set_word(frame, place, static_cast<std::uint16_t>(~sum));
  return true;
}

}  // namespace

// What the process does.
class Line::Carrier {
 public:
  Carrier(Page& page, const bench::Hosts::Taps& taps)
      : page_(page), ends_{taps.host.get(), taps.at_switch.get()} {}

  [[noreturn]] void run() {
    while (true) {
      pollfd polled[2] = {{ends_[0], POLLIN, 0}, {ends_[1], POLLIN, 0}};
      ::poll(polled, 2, patience_ms());
      for (const int end : {0, 1}) {
        if (polled[end].revents != 0) take(end);
        give(end);
      }
    }
  }

 private:
  struct Frame {
    Clock::time_point due;
    std::string bytes;
  };

  // Frames that came in at this end, to the queue of the other.
  void take(int end) {
    char bytes[kMostFrame];
    for (ssize_t got = 0; (got = ::read(ends_[end], bytes, sizeof bytes)) > 0;) {
      const int lose = page_.lose_one_in;
      if (page_.silent || (lose > 0 && random_() % static_cast<unsigned>(lose) == 0)) continue;
      if (queues_[1 - end].size() >= kMostQueued) continue;
      std::string frame(bytes, static_cast<std::size_t>(got));
      if (page_.flip && flip_in(frame, random_)) {
        page_.flip = false;
        ++page_.flips;
      }
      queues_[1 - end].push_back(
          {Clock::now() + std::chrono::microseconds(page_.delay_us), std::move(frame)});
    }
  }

  void give(int end) {
    auto& queue = queues_[end];
    while (!queue.empty() && queue.front().due <= Clock::now()) {
      [[maybe_unused]] const ssize_t sent =
          ::write(ends_[end], queue.front().bytes.data(), queue.front().bytes.size());
      queue.pop_front();
    }
  }

  // Until the next frame is due; rounded down, so that none is late by more than it takes to look again.
  int patience_ms() const {
    auto next = Clock::now() + std::chrono::seconds(1);
    for (const auto& queue : queues_) {
      if (!queue.empty()) next = std::min(next, queue.front().due);
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now());
    return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
  }

  Page& page_;
  int ends_[2];
  std::deque<Frame> queues_[2];  // to each end
  std::mt19937 random_{7};
};

Line::Line(const bench::Hosts& hosts, int host) {
  void* const memory =
      ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Unavailable("no memory for a line");
  page_ = new (memory) Page;
  const pid_t parent = ::getpid();
  process_ = ::fork();
  if (process_ < 0) throw Unavailable("no process for a line");
  if (process_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    Carrier(*page_, hosts.taps(host)).run();
  }
}

Line::~Line() {
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
  ::munmap(page_, sizeof(Page));
}

}  // namespace lockstep::testing

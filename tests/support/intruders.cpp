#include "tests/support/intruders.h"

#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <lockstep/errors.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <fstream>
#include <new>
#include <random>
#include <set>
#include <sstream>
#include <thread>

namespace lockstep::testing {
namespace {

using bench::Hosts;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// More than a worker lets in at a time.
constexpr std::size_t kMostOpen = 300;

// The ports on which this network namespace listens now, those of the loopback left out.
std::set<int> listening_ports() {
  std::set<int> ports;
  for (const char* path : {"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"}) {
    std::ifstream table(path);
    std::string line;
    while (std::getline(table, line)) {
      std::istringstream fields(line);
      std::string number, local, remote, state;
      fields >> number >> local >> remote >> state;
      if (state != "0A" || local.rfind("0100007F:", 0) == 0) continue;
      ports.insert(std::stoi(local.substr(local.rfind(':') + 1), nullptr, 16));
    }
  }
  return ports;
}

// Where the payload of a frame begins; its size if it is no TCP over IPv4, or has none.
std::size_t payload_of(const unsigned char* frame, std::size_t bytes) {
  if (bytes < 54 || frame[12] != 0x08 || frame[13] != 0 || frame[23] != 6) return bytes;
  const std::size_t header = 14 + 4U * (frame[14] & 0xfU);
  return header + 13 > bytes ? bytes : header + 4U * (frame[header + 12] >> 4U);
}

}  // namespace

// In an attacked host: says which ports there are.
void Intruders::scout(Page& page, int host) {
  while (true) {
    int at = 0;
    for (const int port : listening_ports()) {
      if (at < kMostPorts) page.ports[host][at++] = port;
    }
    // Ports that are gone stay: they are attacked after the world has formed.
    std::this_thread::sleep_for(milliseconds(1));  // a table that nothing wakes us for
  }
}

// In the switch: keeps what goes by.
void Intruders::record(Page& page) {
  const base::Fd tap(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL)));
  unsigned char frame[65536];
  while (page.recorded < kMostRecords) {
    const ssize_t got = ::recv(tap.get(), frame, sizeof frame, 0);
    if (got <= 0) continue;
    const std::size_t begin = payload_of(frame, static_cast<std::size_t>(got));
    const auto bytes =
        std::min(static_cast<std::size_t>(got) - std::min(begin, static_cast<std::size_t>(got)),
                 sizeof(Record::data));
    if (bytes == 0) continue;
    Record& record = page.records[page.recorded];
    record.bytes = static_cast<int>(bytes);
    std::memcpy(record.data, frame + begin, bytes);
    ++page.recorded;
  }
  while (true) ::pause();
}

// In the strangers' host: connects to every port again and again.
void Intruders::intrude(Page& page) {
  std::deque<base::Fd> open;
  std::mt19937 random(3);
  while (true) {
    const int attack = page.attack;
    if (attack == kRest) open.clear();
    bool any = false;
    for (int host = 0; host < kMostHosts && attack != kRest; ++host) {
      for (const auto& port : page.ports[host]) {
        if (port == 0) continue;
        base::Fd stranger = connect_as_stranger(Hosts::address(host), port);
        any = true;
        ++page.connections;
        if (attack != kReplay) {
          behave(stranger, static_cast<Manner>(attack));
        } else if (base::wait_ready(stranger.get(), POLLOUT, Deadline::after(milliseconds(20)))) {
          // From a random message on, as they followed each other.
          const int recorded = page.recorded;
          const int first = static_cast<int>(random() % static_cast<unsigned>(recorded + 1));
          for (int i = first; i < std::min(first + 4, recorded); ++i)
            ::send(stranger.get(), page.records[i].data,
                   static_cast<std::size_t>(page.records[i].bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        open.push_back(std::move(stranger));
        if (open.size() > kMostOpen) open.pop_front();
      }
    }
    if (!any) std::this_thread::sleep_for(microseconds(200));  // until there are ports
  }
}

Intruders::Intruders(const bench::Hosts& hosts, int from) {
  void* const memory =
      ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Unavailable("no memory for intruders");
  page_ = new (memory) Page;
  for (int host = 0; host < from; ++host) {
    processes_.push_back(start([&, host] {
      if (hosts.enter(host)) scout(*page_, host);
    }));
  }
  processes_.push_back(start([&] {
    if (hosts.enter_switch()) record(*page_);
  }));
  processes_.push_back(start([&] {
    if (hosts.enter(from)) intrude(*page_);
  }));
}

Intruders::~Intruders() {
  for (const pid_t process : processes_) {
    ::kill(process, SIGKILL);
    ::waitpid(process, nullptr, 0);
  }
  ::munmap(page_, sizeof(Page));
}

pid_t Intruders::start(const std::function<void()>& body) {
  const pid_t parent = ::getpid();
  const pid_t process = ::fork();
  if (process < 0) throw Unavailable("no process for intruders");
  if (process == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() == parent) body();
    ::_exit(1);
  }
  return process;
}

}  // namespace lockstep::testing

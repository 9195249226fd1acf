#include "bench/hosts/hosts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <lockstep/errors.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <sstream>

#include "base/check.h"
#include "base/process.h"

namespace lockstep::bench {
namespace {

constexpr std::chrono::seconds kToConfigure{20};

// A packet that is handed over in one piece has up to 64 KiB. A smaller burst cuts such packets up,
// which costs more processor time than it is worth: the rate is the same. At 1 Gbit/s this burst is
// 1 ms.
constexpr int kBurstBytes = 128 << 10;
// So long that TCP never loses a packet to it while one host sends, and short enough that many
// senders do not wait long for each other: 16 ms at 1 Gbit/s, as much as a switch has.
constexpr int kQueueBytes = 2'000'000;

constexpr const char* kOwnNamespace = "/proc/thread-self/ns/net";

[[noreturn]] void refuse(const std::string& what) {
  throw Unavailable(fmt::format("hosts in namespaces cannot be made here: {}", what));
}

base::Fd own_namespace() {
  base::Fd fd(::open(kOwnNamespace, O_RDONLY | O_CLOEXEC));
  if (!fd) refuse(fmt::format("cannot open {}: {}", kOwnNamespace, std::strerror(errno)));
  return fd;
}

bool write_text(const char* path, const std::string& text) {
  const base::Fd file(::open(path, O_WRONLY | O_CLOEXEC));
  return file && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// A user namespace in which this user is root, and a network namespace of it: no way leads back to one
// that belongs to others.
void become_root_of_own_namespace() {
  const auto user = ::geteuid();
  const auto group = ::getegid();
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0 || !write_text("/proc/self/setgroups", "deny") ||
      !write_text("/proc/self/uid_map", fmt::format("0 {} 1", user)) ||
      !write_text("/proc/self/gid_map", fmt::format("0 {} 1", group)))
    refuse(fmt::format("run as root, or allow user namespaces ({})", std::strerror(errno)));
}

// This thread in another network namespace, for as long as the object lives.
class Visit {
 public:
  explicit Visit(const base::Fd& where) : home_(own_namespace()) {
    if (::setns(where.get(), CLONE_NEWNET) != 0)
      refuse(fmt::format("setns: {}", std::strerror(errno)));
  }
  ~Visit() { LOCKSTEP_CHECK(::setns(home_.get(), CLONE_NEWNET) == 0, "no way back from setns()"); }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  base::Fd home_;
};

base::Fd make_namespace() {
  const base::Fd home = own_namespace();
  if (::unshare(CLONE_NEWNET) != 0)
    refuse(fmt::format("network namespaces are refused ({}); run as root", std::strerror(errno)));
  base::Fd made = own_namespace();
  LOCKSTEP_CHECK(::setns(home.get(), CLONE_NEWNET) == 0, "no way back from unshare()");
  return made;
}

base::Fd make_tap(const base::Fd& where, const std::string& name) {
  const Visit visit(where);
  base::Fd tap(::open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!tap) refuse(fmt::format("cannot open /dev/net/tun: {}", std::strerror(errno)));
  ifreq request{};
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  if (::ioctl(tap.get(), TUNSETIFF, &request) != 0)
    refuse(fmt::format("no tap {}: {}", name, std::strerror(errno)));
  return tap;
}

base::Fd file_in_memory(const std::string& text) {
  base::Fd file(::memfd_create("lockstep-hosts", MFD_CLOEXEC));
  if (!file || !base::write_all(file.get(), text, Deadline::after(kToConfigure)))
    refuse("no memory file");
  ::lseek(file.get(), 0, SEEK_SET);
  return file;
}

// Whatever the file has now, without the end of its last line.
std::string text_of(const base::Fd& file) {
  char text[4096];
  const ssize_t got = ::pread(file.get(), text, sizeof text, 0);
  std::string all(text, got > 0 ? static_cast<std::size_t>(got) : 0);
  while (!all.empty() && all.back() == '\n') all.pop_back();
  return all.substr(0, all.find('\n'));
}

// How a child ended: its exit code, or −1 if it had to be killed.
int code_by(pid_t child, Deadline deadline) {
  const base::Fd ended = base::open_pidfd(child);
  const bool in_time = ended && base::wait_ready(ended.get(), POLLIN, deadline);
  if (!in_time) ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  return in_time && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

constexpr int kNotFound = 127;

// The host name is for messages, and for programs that tell hosts apart by it.
bool enter_namespace(const base::Fd& where, const std::string& name) {
  return ::setns(where.get(), CLONE_NEWNET) == 0 &&
         (::unshare(CLONE_NEWUTS) != 0 || ::sethostname(name.data(), name.size()) == 0);
}

}  // namespace

std::string Hosts::name(int host) {
  return fmt::format("host{}", host);
}
std::string Hosts::address(int host) {
  return fmt::format("10.77.0.{}", host + 1);
}
std::string Hosts::address6(int host) {
  return fmt::format("fd77::{:x}", host + 1);
}

Hosts::Hosts(const HostsOptions& options) : options_(options) {
  LOCKSTEP_CHECK(options.count >= 1 && options.count <= 64, "1 to 64 hosts");
  if (::geteuid() != 0) {
    become_root_of_own_namespace();
    configure(own_namespace(), "ip", "link set lo up\n");
  }
  switch_ = make_namespace();
  configure(switch_, "ip",
            fmt::format("link add br0 type bridge mcast_snooping 0\n"
                        "link set br0 mtu {} up\n",
                        options.mtu));
  for (int host = 0; host < options.count; ++host) {
    hosts_.push_back(make_namespace());
    make_line(host);
    set_addresses(host);
    if (!options.rate.empty()) set_rate(host, options.rate);
  }
}

bool Hosts::enter(int host) const {
  return enter_namespace(hosts_[static_cast<std::size_t>(host)], name(host));
}

std::string Hosts::key() const {
  std::string places = std::to_string(::getpid());
  for (const base::Fd& host : hosts_) places += fmt::format(" {}", host.get());
  return places;
}

bool Hosts::enter_with(const std::string& key, const std::string& address) {
  std::istringstream words(key);
  int process = 0;
  int descriptor = 0;
  words >> process;
  for (int host = 0; words >> descriptor; ++host) {
    if (Hosts::address(host) != address) continue;
    const base::Fd where(
        ::open(fmt::format("/proc/{}/fd/{}", process, descriptor).c_str(), O_RDONLY | O_CLOEXEC));
    return where && enter_namespace(where, name(host));
  }
  return false;
}

bool Hosts::enter_switch() const {
  return ::setns(switch_.get(), CLONE_NEWNET) == 0;
}

// `ip` finds the host's namespace by the descriptor that it inherits.
void Hosts::make_line(int host) {
  const base::Fd& where = hosts_[static_cast<std::size_t>(host)];
  if (options_.lines == LineKind::kVeth) {
    configure(switch_, "ip",
              fmt::format("link add {0} mtu {1} type veth peer name eth0 mtu {1} netns "
                          "/proc/self/fd/{2}\n",
                          name(host), options_.mtu, where.get()));
  } else {
    taps_.push_back({make_tap(where, "eth0"), make_tap(switch_, name(host))});
  }
  configure(switch_, "ip",
            fmt::format("link set {} mtu {} master br0 up\n", name(host), options_.mtu));
}

void Hosts::set_addresses(int host) {
  const base::Fd& where = hosts_[static_cast<std::size_t>(host)];
  configure(where, "ip",
            fmt::format("link set lo up\n"
                        "address add {}/24 dev eth0\n"
                        "link set eth0 mtu {} up\n",
                        address(host), options_.mtu));
  try {
    configure(where, "ip", fmt::format("address add {}/64 dev eth0 nodad\n", address6(host)));
  } catch (const Unavailable&) {
    has_ipv6_ = false;  // the kernel has none
  }
}

void Hosts::set_rate(int host, const std::string& rate) const {
  const auto limit = [&](const std::string& interface_name) {
    return fmt::format("qdisc add dev {} root tbf rate {} burst {} limit {}\n", interface_name,
                       rate, kBurstBytes, kQueueBytes);
  };
  configure(hosts_[static_cast<std::size_t>(host)], "tc", limit("eth0"));
  configure(switch_, "tc", limit(name(host)));
}

void Hosts::set_line(int host, End end, const char* state) const {
  const bool own = end == End::kHost;
  configure(own ? hosts_[static_cast<std::size_t>(host)] : switch_, "ip",
            fmt::format("link set {} {}\n", own ? "eth0" : name(host), state));
}

void Hosts::configure(const base::Fd& where, const char* tool, const std::string& lines) const {
  const base::Fd in = file_in_memory(lines);
  const base::Fd err = file_in_memory("");
  const pid_t child = ::fork();
  if (child < 0) refuse("no process to be had; see `ulimit -u`");
  if (child == 0) {
    for (const base::Fd& host : hosts_) ::fcntl(host.get(), F_SETFD, 0);
    ::dup2(in.get(), STDIN_FILENO);
    ::dup2(err.get(), STDOUT_FILENO);
    ::dup2(err.get(), STDERR_FILENO);
    if (::setns(where.get(), CLONE_NEWNET) != 0) ::_exit(kNotFound - 1);
    ::execlp(tool, tool, "-batch", "-", nullptr);
    ::execl(fmt::format("/usr/sbin/{}", tool).c_str(), tool, "-batch", "-", nullptr);
    ::_exit(kNotFound);
  }
  const int code = code_by(child, Deadline::after(kToConfigure));
  if (code == kNotFound) refuse(fmt::format("no program `{}`; install iproute2", tool));
  if (code != 0)
    refuse(fmt::format("`{} {}` says: {}", tool, lines.substr(0, lines.size() - 1), text_of(err)));
}

}  // namespace lockstep::bench

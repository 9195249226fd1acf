// Hosts on one machine, for tests and benchmarks: network namespaces with one switch between them.
//
//   host     a network namespace with the interface eth0. Its processes also see a host name of
//            their own, host0, host1 …
//   switch   one more network namespace, with a bridge
//   line     between a host and the switch, with the same rate each way: a veth pair, or two taps
//            that somebody in user space carries frames between
//
// Workers in different hosts count as workers of different hosts everywhere in Lockstep. Nothing has
// a name on the machine: descriptors of this process, and processes in the hosts, hold the
// namespaces. When these are gone, so are the namespaces, however the processes ended.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"

namespace lockstep::bench {

enum class LineKind { kVeth, kTaps };

struct HostsOptions {
  int count = 2;
  std::string rate;  // as tc says it, such as "1gbit"; empty: as fast as the machine
  int mtu = 1500;
  LineKind lines = LineKind::kVeth;
};

// Threads:   for a process with one thread. A process of another user than root enters a user
//            namespace and a network namespace of its own, for good.
// Blocking:  for seconds at the most.
// Failure:   Unavailable, in one line that says what is missing.
// Ownership: owns the namespaces together with the processes in them.
class Hosts {
 public:
  explicit Hosts(const HostsOptions& options);

  int count() const { return static_cast<int>(hosts_.size()); }
  static std::string name(int host);      // "host0"
  static std::string address(int host);   // "10.77.0.1"
  static std::string address6(int host);  // "fd77::1"
  bool has_ipv6() const { return has_ipv6_; }

  // Moves this process into a host, or into the switch; false, with errno, if that is refused. For
  // a child that was just forked.
  bool enter(int host) const;
  bool enter_switch() const;

  // For a program that others start: `key` in its environment lets it enter by a host's address, as
  // long as this process lives.
  std::string key() const;
  static bool enter_with(const std::string& key, const std::string& address);

  // The line of a host goes down, or up again. `kHost`: at the host's end, as if its card failed;
  // else as if somebody pulled the cable at the switch.
  enum class End { kSwitch, kHost };
  void cut(int host, End end = End::kSwitch) const { set_line(host, end, "down"); }
  void mend(int host, End end = End::kSwitch) const { set_line(host, end, "up"); }

  // With taps: the host's end of its line and the switch's. Frames must be carried between them.
  struct Taps {
    base::Fd host;
    base::Fd at_switch;
  };
  const Taps& taps(int host) const { return taps_[static_cast<std::size_t>(host)]; }

 private:
  void make_line(int host);
  void set_addresses(int host);
  void set_rate(int host, const std::string& rate) const;
  void set_line(int host, End end, const char* state) const;
  // Runs `ip -batch` or `tc -batch` in a namespace. Throws Unavailable with its complaint.
  void configure(const base::Fd& where, const char* tool, const std::string& lines) const;

  HostsOptions options_;
  base::Fd switch_;
  std::vector<base::Fd> hosts_;
  std::vector<Taps> taps_;
  bool has_ipv6_ = true;
};

}  // namespace lockstep::bench

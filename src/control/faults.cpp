#include "control/faults.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <lockstep/faults.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "base/atomic_file.h"
#include "base/environment.h"
#include "base/files.h"
#include "control/rendezvous/loss.h"

namespace lockstep {
namespace control {
namespace {

using Clock = std::chrono::system_clock;  // launcher and workers may be on several hosts

int own_number() {
  return static_cast<int>(base::environment_number("RANK", 0, 1 << 16).value_or(0));
}

int workers_of_job() {
  return static_cast<int>(base::environment_number("WORLD_SIZE", 1, 1 << 16).value_or(1));
}

// Seconds since the job began, as the launcher has it; without a launcher, since the first call.
double elapsed() {
  static const double began = [] {
    const auto given = base::parse_real(base::environment("LOCKSTEP_FAULT_START").value_or(""));
    return given ? *given : std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
  }();
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count() - began;
}

// As if the network were gone: both directions of every TCP connection of this process end. How many there were.
int cut_connections() {
  int cut = 0;
  for (const std::string& name : base::names_in("/proc/self/fd")) {
    const int fd = static_cast<int>(base::parse_number(name).value_or(-1));
    int domain = 0;
    socklen_t size = sizeof domain;
    if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0) continue;
    if (domain != AF_INET && domain != AF_INET6) continue;
    if (::shutdown(fd, SHUT_RDWR) == 0) ++cut;  // fails for sockets that are not connected
  }
  return cut;
}

// At once: the process may die by the next instruction.
void tell(const std::string& line) {
  const ssize_t done = ::write(STDERR_FILENO, line.data(), line.size());
  static_cast<void>(done);  // nobody reads: the fault happens all the same
}

void tell_launcher(int number) {
  const auto fd = base::environment_number("LOCKSTEP_LOSS_FD", 0, 1 << 30);
  if (!fd) return;
  LossTeller(static_cast<int>(*fd)).tell({own_number(), Loss::kFirstFault - number});
}

}  // namespace

Faults& Faults::from_environment() {
  static Faults faults;
  const auto seed = base::environment_number("LOCKSTEP_FAULT_SEED", 0, INT64_MAX).value_or(0);
  try {
    faults.add(parse_faults(base::environment("LOCKSTEP_FAULTS").value_or("")),
               static_cast<std::uint64_t>(seed), true);
  } catch (const BadInput& error) {
    throw BadInput(fmt::format("LOCKSTEP_FAULTS: {}", error.what()));
  }
  return faults;
}

Faults& Faults::here() {
  static Faults& faults = from_environment();
  return faults;
}

void Faults::add(const FaultSchedule& schedule, std::uint64_t seed, bool from_launcher) {
  const base::Lock lock(mutex_);
  int number = -1;
  for (const Fault& fault : schedule.faults) {
    ++number;
    if (fault.worker != own_number()) continue;
    if (!restarted_ || fault.where == "join")
      due_.push_back({.fault = fault, .number = from_launcher ? number : -1});
  }
  if (restarted_) seed += generation_ << 32;
  for (const FaultRate& rate : schedule.rates) {
    streams_.push_back({FaultStream(rate, seed, workers_of_job()), seed});
    FaultStream& faults = streams_.back().faults;
    // What came due before this process was there is left out.
    while (!rate.by_step && faults.at() < elapsed()) faults.pop();
  }
  armed_.store(!due_.empty() || !streams_.empty(), std::memory_order_relaxed);
}

void Faults::came_later(std::uint64_t generation, bool restarted) {
  const base::Lock lock(mutex_);
  generation_ = generation;
  waits_for_step_ = true;
  restarted_ = restarted;
  if (restarted) std::erase_if(due_, [](const Due& one) { return one.fault.where != "join"; });
  for (Stream& stream : streams_) {
    const FaultRate rate = stream.faults.rate();
    if (joins_badly(rate, stream.seed, own_number(), generation)) {
      due_.push_back(
          {{.kind = rate.kind, .worker = own_number(), .where = "join", .detail = rate.detail}});
    }
    if (restarted && rate.by_step)
      stream.faults = FaultStream(rate, stream.seed + (generation << 32), workers_of_job());
  }
}

void Faults::set_flip(Flip flip) {
  const base::Lock lock(mutex_);
  flip_ = std::move(flip);
}

void Faults::begin_step(std::int64_t step) {
  const base::Lock lock(mutex_);
  if (!std::exchange(waits_for_step_, false)) return;
  for (Stream& stream : streams_) {
    FaultStream& faults = stream.faults;
    while (faults.rate().by_step && faults.at() < static_cast<double>(step)) faults.pop();
  }
}

// Moves those whose time or step has come to the others that are due.
void Faults::draw(std::int64_t step) {
  for (Stream& stream : streams_) {
    FaultStream& faults = stream.faults;
    const bool by_step = faults.rate().by_step;
    if (by_step && waits_for_step_) continue;
    const double now = by_step ? static_cast<double>(step) : elapsed();
    for (; faults.at() <= now; faults.pop()) {
      if (faults.next().worker != own_number()) continue;
      due_.push_back({.fault = faults.next(), .drawn = true});
      if (by_step) due_.back().from = faults.at();
    }
  }
}

// The number of the first that strikes here; as many as there are if none does.
std::size_t Faults::find(std::string_view where, std::int64_t step) {
  draw(step);
  for (std::size_t i = 0; i < due_.size(); ++i) {
    const Due& one = due_[i];
    if (one.fault.where != where || one.fault.step == Fault::kEveryStep) continue;
    const bool any_step = one.drawn || (where == "join" && one.fault.step == 0);
    if (one.from ? *one.from <= static_cast<double>(step) : any_step || one.fault.step == step)
      return i;
  }
  return due_.size();
}

bool Faults::due(std::string_view where, std::int64_t step) {
  const base::Lock lock(mutex_);
  return find(where, step) < due_.size();
}

std::optional<Faults::Due> Faults::take(std::string_view where, std::int64_t step) {
  const base::Lock lock(mutex_);
  if (where == "join") step = static_cast<std::int64_t>(generation_);
  const std::size_t found = find(where, step);
  if (found == due_.size()) return std::nullopt;
  Due one = due_[found];
  one.fault.step = step;
  due_.erase(due_.begin() + static_cast<std::ptrdiff_t>(found));
  armed_.store(!due_.empty() || !streams_.empty(), std::memory_order_relaxed);
  return one;
}

// Sleeps each time, and says so once.
void Faults::strike_every_time(std::string_view where) {
  std::chrono::milliseconds sleep{0};
  {
    const base::Lock lock(mutex_);
    for (Due& one : due_) {
      if (one.fault.where != where || one.fault.step != Fault::kEveryStep) continue;
      sleep += time_of(one.fault);
      if (std::exchange(one.told, true)) continue;
      tell(fmt::format("lockstep: fault {}\n", to_string(one.fault)));
    }
  }
  if (sleep.count() > 0) std::this_thread::sleep_for(sleep);
}

void Faults::happen(std::string_view where, std::int64_t step) {
  strike_every_time(where);
  while (const auto one = take(where, step)) {
    tell(fmt::format("lockstep: fault {}\n", to_string(one->fault)));
    if (one->number >= 0) tell_launcher(one->number);
    carry_out(one->fault);
  }
}

void Faults::flip(const Fault& fault) {
  const base::Lock lock(mutex_);
  std::mt19937_64 bits(static_cast<std::uint64_t>(fault.step));
  if (flip_) return flip_(fault.detail.empty() ? "weights" : fault.detail, bits());
  tell("lockstep: no bit was changed: no model of this worker is trained at present\n");
}

void Faults::carry_out(const Fault& fault) {
  switch (fault.kind) {
    case FaultKind::kKill:
      std::raise(SIGKILL);
      return;
    case FaultKind::kStop:
      std::raise(SIGSTOP);
      return;
    case FaultKind::kCrash:
      std::signal(SIGSEGV, SIG_DFL);
      std::raise(SIGSEGV);
      return;
    case FaultKind::kSlow:
      std::this_thread::sleep_for(time_of(fault));
      return;
    case FaultKind::kCut:
      if (cut_connections() == 0)
        tell("lockstep: nothing was cut: this worker has no TCP connection\n");
      return;
    case FaultKind::kFlip:
      return flip(fault);
    case FaultKind::kDisk:
      return base::fail_next_file(ENOSPC);
    case FaultKind::kMemory:
      throw std::bad_alloc();
  }
}

}  // namespace control

void inject_faults(std::string_view schedule, std::uint64_t seed) {
  control::Faults::here().add(control::parse_faults(schedule), seed);
}

}  // namespace lockstep

#include "comm/shm/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <ctime>

namespace lockstep::comm {

void futex_wait(const Word& word, std::uint32_t seen, Deadline deadline) {
  using std::chrono::nanoseconds;
  using std::chrono::seconds;
  // An absolute time on the clock of Deadline. At most a minute from now, even if the deadline is
  // far away.
  const auto latest = Deadline::Clock::now() + std::chrono::minutes(1);
  const auto until = std::min(deadline.when(), latest).time_since_epoch();
  if (until.count() <= 0) return;
  timespec time{};
  time.tv_sec = std::chrono::duration_cast<seconds>(until).count();
  time.tv_nsec = std::chrono::duration_cast<nanoseconds>(until - seconds(time.tv_sec)).count();
  ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, seen, &time, nullptr, FUTEX_BITSET_MATCH_ANY);
}

void futex_wake_all(const Word& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// The ringer changes `rung`, then reads `sleeping`. The sleeper changes `sleeping`, then reads
// `rung`. All four are sequentially consistent, so at least one of the two sees the other, and no
// ring is lost.
void Doorbell::ring() {
  rung.fetch_add(1, std::memory_order_seq_cst);
  if (sleeping.load(std::memory_order_seq_cst) != 0) futex_wake_all(rung);
}

void Doorbell::ring_sleepers() {
  if (sleeping.load(std::memory_order_seq_cst) == 0) return;
  rung.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(rung);
}

void Doorbell::sleep(std::uint32_t seen, int spins, Deadline deadline) {
  look_again({spins, {}}, [&] { return rung.load(std::memory_order_acquire) != seen; });
  const Sleeper sleeper(*this);
  if (rung.load(std::memory_order_seq_cst) == seen) futex_wait(rung, seen, deadline);
}

}  // namespace lockstep::comm

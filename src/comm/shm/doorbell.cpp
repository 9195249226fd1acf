#include "comm/shm/doorbell.h"

namespace lockstep::comm {

// A sleeper says that it sleeps before it looks at the bell a last time, so one of the two sees the other.
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
  for (int i = 0; i < spins && rung.load(std::memory_order_acquire) == seen; ++i) spin_pause();
  const Sleeper sleeper(*this);
  if (rung.load(std::memory_order_seq_cst) == seen) futex_wait(rung, seen, deadline);
}

}  // namespace lockstep::comm

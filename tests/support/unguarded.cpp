// Must not compile with -Wthread-safety: the mutex that guards `value` is not held.
#include "base/mutex.h"
struct Counter {
  int read() { return value; }
  lockstep::base::Mutex mutex;
  int value LOCKSTEP_GUARDED_BY(mutex) = 0;
};
int main() {
  return Counter().read();
}

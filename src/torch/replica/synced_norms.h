// Where batch norms may not wait for other workers.
#pragma once

namespace lockstep::replica {

// While it lives, a batch norm of convert_sync_batchnorm() that trains on this thread throws
// BadInput: in a shard of a Step, which other workers do not run at the same time.
//
// Threads:   works for the thread that made it.
// Blocking:  never.
// Failure:   none.
// Ownership: a scope.
class [[nodiscard]] NoSyncedNorms {
 public:
  NoSyncedNorms();
  ~NoSyncedNorms();
  NoSyncedNorms(const NoSyncedNorms&) = delete;
  NoSyncedNorms& operator=(const NoSyncedNorms&) = delete;
};

}  // namespace lockstep::replica

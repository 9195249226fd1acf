// The file that gets the order of asynchronous rounds, or has it (plan/order.h).
#pragma once

#include <string>

#include "plan/order.h"

namespace lockstep::steps {

// BadInput, with the file and the line.
plan::Order load_order(const std::string& path);

// Gets one round after the other; a kill leaves all that were there before.
//
// Threads:   one caller at a time.
// Blocking:  on the disk.
// Failure:   BadInput for a file that is there and is no order, and for one that cannot be written; Unavailable if the disk is
//            full.
// Ownership: a value; the file is open only within a call.
class OrderFile {
 public:
  // Looks at the file, if there is one: no other kind of file is overwritten. Else it makes one, without rounds.
  OrderFile(std::string path, std::string job, int shards);

  // The first one replaces what the file has from that step on. BadInput if what comes before is another job's.
  void add(const plan::RoundOrder& round);

 private:
  std::string path_;
  std::string job_;
  int shards_;
  plan::Order before_;  // until the first round is added
  bool begun_ = false;
};

}  // namespace lockstep::steps

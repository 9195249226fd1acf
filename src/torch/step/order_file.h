// The file that gets the order of asynchronous rounds, or has it (plan/order.h).
#pragma once

#include <string>

#include "plan/order.h"

namespace lockstep::steps {

// BadInput, with the file and the line.
plan::Order load_order(const std::string& path);

// Rounds go to the file as they are committed; a kill leaves all that were there before.
//
// Threads:   one caller at a time.
// Blocking:  on the disk.
// Failure:   BadInput for a file that is there and is no order, and for one that cannot be written; Unavailable if the disk is
//            full.
// Ownership: a value; the file is open only within a call.
class OrderFile {
 public:
  OrderFile(std::string path, int shards) : path_(std::move(path)), shards_(shards) {}

  // The first one replaces what the file has from that step on.
  void add(const plan::RoundOrder& round);

 private:
  std::string path_;
  int shards_;
  bool begun_ = false;
};

}  // namespace lockstep::steps

// The estate of a job: memory that its workers leave if all of them die. The keeper holds descriptors of it, so the memory
// outlives every worker; workers that are started then ask for it.
//
//   give    a worker hands over a descriptor, as part of a set: the memory of one generation
//   seal    the set is whole, and takes the place of the one before
//   drop    there is none any more: nobody is to go on from it
//   fetch   a new worker gets the descriptors of the sealed set
//
// Each worker inherits a socket for it, LOCKSTEP_ESTATE_FD. Other launchers have none.
#pragma once

#include <lockstep/deadline.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/fd.h"

namespace lockstep::control {

// One memory of a set, and which it is among them. The keeper only compares `set`: it may hear of a set when it has heard
// of the next one already, from another worker.
struct EstateItem {
  std::uint64_t set = 0;  // the same number on all workers of a generation, larger than any before
  std::uint64_t group = 0;  // of memories that are for the same
  std::uint32_t rank = 0;   // whose memory it is
  std::uint32_t number =
      0;  // among those of the group and the rank, in the order in which they were made
  std::uint64_t bytes = 0;
};

struct HeldItem {
  EstateItem item;
  base::Fd memory;
};

// A worker's end.
//
// Threads:   one caller at a time.
// Blocking:  until the keeper takes a message, or answers; at most a few seconds.
// Failure:   none. If the keeper does not take something, give() and seal() return false, and fetch() returns nothing.
// Ownership: a duplicate of the inherited descriptor, which closes on exec.
class Estate {
 public:
  explicit Estate(std::optional<int> inherited);

  bool is_there() const { return static_cast<bool>(socket_); }
  bool give(const EstateItem& item, int memory) const;
  bool seal(std::uint64_t set) const;
  void drop() const;
  std::vector<HeldItem> fetch() const;

 private:
  base::Fd socket_;
};

// The keeper's end.
//
// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   none. What cannot be kept is dropped, and then there is no estate.
// Ownership: owns the descriptors that workers have given.
class EstateKeeper {
 public:
  // For a worker that is about to start: its end of a socket. Empty if there are no descriptors left.
  base::Fd open();
  // Becomes readable when a worker has said something, and when it has ended.
  std::vector<int> sockets() const;
  // Hears all that workers have said so far, and answers.
  void serve();

 private:
  struct Said;
  bool hear(int socket);
  void obey(int socket, Said said);
  void answer(int socket, std::uint32_t number);
  void keep(HeldItem item);
  void drop();

  std::vector<base::Fd> sockets_;
  std::map<std::uint64_t, std::vector<HeldItem>> sets_;
  std::uint64_t sealed_ = 0;  // 0: none
  int fetched_ = 0;           // how often, since it was sealed
};

}  // namespace lockstep::control

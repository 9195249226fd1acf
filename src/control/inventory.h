// What was made in a world, in order, so that all of it can go on in another one, with other workers.
//
// A worker that comes along makes its objects in the new world, in the order in which the others made theirs. Each object
// meets its like there: what a constructor does with the other workers, rebind() does as well.
#pragma once

#include <lockstep/comm.h>

#include <memory>
#include <optional>
#include <vector>

namespace lockstep {
class World;
}

namespace lockstep::control {

class Member {
 public:
  virtual ~Member() = default;
  // Goes on in another world. Collective there, with those that are made in it.
  virtual void rebind(World& world) = 0;
};

// Threads:   one caller at a time.
// Blocking:  move_to() and the first source(), which are collective; at most the Comm's timeout.
// Failure:   that of the members.
// Ownership: of nothing: members that have gone are passed over.
class Inventory {
 public:
  explicit Inventory(Comm comm) : comm_(std::move(comm)) {}

  void add(std::weak_ptr<Member> member) { members_.push_back(std::move(member)); }

  // All of them go to another world.
  void move_to(World& world);

  // The lowest rank that has brought what it made in another world, whose values count; 0 if nobody has. Every worker asks
  // at the same points.
  int source();

 private:
  Comm comm_;
  bool brings_ = false;  // this worker
  std::optional<int> source_;
  std::vector<std::weak_ptr<Member>> members_;
};

}  // namespace lockstep::control

// What was made in a world, in order, so that all of it can go on in another world, with other workers.
//
// Some workers of the new world are new. They construct their objects there, in the same order in which the others made
// theirs. Meanwhile the others rebind() theirs. So rebind() must call the same collectives as the constructor, in the
// same order.
#pragma once

#include <lockstep/comm.h>

#include <memory>
#include <optional>
#include <vector>

namespace lockstep {
class World;
}

namespace lockstep::control {

// Something that belongs to a world: a replica, an optimizer …
class Member {
 public:
  virtual ~Member() = default;
  // Goes on in another world. Collective there, together with the constructors of new workers.
  virtual void rebind(World& world) = 0;
};

// The list of one world.
//
// Threads:   one caller at a time.
// Blocking:  move_to() and the first source(), which are collective; at most the Comm's timeout.
// Failure:   that of the members.
// Ownership: owns no member; members that are gone are left out.
class Inventory {
 public:
  explicit Inventory(Comm comm) : comm_(std::move(comm)) {}

  void add(std::weak_ptr<Member> member) { members_.push_back(std::move(member)); }

  // Rebinds all members to another world, to the next generation of this one, or to other memory in the same. Its
  // inventory gets them, also if a member throws.
  void move_to(World& world);

  // The worker whose values (weights, state) count: the lowest rank that came from another world, or 0 if none did.
  // The first call is collective.
  int source();
  // Every worker came from the generation before, with values of its own: nobody takes those of another.
  bool nobody_is_new() const { return nobody_is_new_; }
  // After source(): some workers came with values, which count for all, learning rates among them.
  bool some_bring() const { return nobody_is_new_ || some_bring_; }

 private:
  Comm comm_;
  bool brings_ = false;  // this worker came from another world
  bool nobody_is_new_ = false;
  bool some_bring_ = false;
  std::optional<int> source_;
  std::vector<std::weak_ptr<Member>> members_;
};

// Another handle on the same world. It sees every later generation of it.
World handle_on(const World& world);

}  // namespace lockstep::control

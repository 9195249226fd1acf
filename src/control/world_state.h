// What a World handle holds. Only join(), the handle's own members and tests include this.
#pragma once

#include <lockstep/bootstrap.h>
#include <lockstep/errors.h>
#include <lockstep/world.h>

#include <map>
#include <memory>
#include <string>

#include "base/hash.h"
#include "control/announcements.h"
#include "control/inventory.h"
#include "control/launcher_environment.h"
#include "control/rendezvous/estate.h"
#include "control/rendezvous/loss.h"
#include "control/rendezvous/news.h"
#include "flat/cuda/gpus.h"

namespace lockstep {

namespace control {

// What a worker needs to join the next generation.
struct Rejoining {
  // A newcomer begins with the first loop of its program, so nobody can join a later one.
  bool closed() const { return loops > 1; }

  LaunchInfo launched;  // as the launcher has said it
  std::string engine;
  std::string secret;
  std::chrono::milliseconds timeout{0};
  std::shared_ptr<LossTeller> launcher;
  NewsPage news = NewsPage::inherited(std::nullopt);
  Estate estate = Estate(std::nullopt);
  int survivors = 0;
  int loops = 0;                        // over batches, that this program has begun
  std::shared_ptr<void> farewell = {};  // when the last handle goes, the launcher hears of it
};

}  // namespace control

// Shared by the handles on one world. `comm` belongs to one generation; so does everything else here.
struct World::State {
  control::LaunchInfo info;
  std::uint64_t generation = 1;
  std::string launcher;
  Device device;
  Comm comm;
  std::uint32_t next_channel = kFirstChannel;
  std::shared_ptr<control::Announcements> announcements = {};  // made when first asked for
  std::shared_ptr<control::Inventory> inventory = {};          // the same

  bool joined_later = false;
  bool restarted = false;
  bool late = false;                                   // of workers that have all ended (legacy.h)
  std::shared_ptr<control::Rejoining> rejoining = {};  // null: this world has one generation

  // Lower ids are for programs that call Comm::channel themselves.
  static constexpr std::uint32_t kFirstChannel = std::uint32_t{1} << 31;
  static constexpr std::uint32_t kAnnouncements = kFirstChannel - 1;
  static constexpr std::uint32_t kInventory = kFirstChannel - 2;
};

namespace control {

// join() with any GPUs: tests make them up. A struct, because World has it as a friend.
struct Joining {
  static World join(const JoinOptions& options, cuda::Gpus& gpus);
  // Another handle on the same world. It sees every later generation of it.
  static World handle_on(const World& world) { return World(world.state_); }
  static void say(const World& world, Doing doing);
  static void begin_loop(const World& world);
  static int loops_in(const World& world);
  static const Estate* estate_of(const World& world);
  static World late_world(const World& now, int workers);
};

// A bootstrap for a world of one worker: nccl wants one for every world.
//
// Threads, Blocking, Ownership: as Bootstrap.
// Failure:   Timeout, at once, for a key that has not been put: nobody else will.
class OwnBootstrap : public Bootstrap {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return name_; }
  std::string secret() const override { return secret_; }
  void put(std::string_view key, std::string_view value, Deadline /*deadline*/) override {
    values_.emplace(key, value);
  }
  std::string get(std::string_view key, Deadline /*deadline*/) override {
    const auto found = values_.find(std::string(key));
    if (found != values_.end()) return found->second;
    throw Timeout("a world of one waits for a second worker: " + std::string(key));
  }

 private:
  static constexpr std::size_t kRandomBytes = 16;
  std::string name_ = "lockstep-alone-" + base::to_hex(base::random_bytes(kRandomBytes));
  std::string secret_ = base::to_hex(base::random_bytes(kRandomBytes));
  std::map<std::string, std::string> values_;
};

}  // namespace control
}  // namespace lockstep

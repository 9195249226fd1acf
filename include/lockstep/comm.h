// The wire between the workers of one generation: messages and collectives.
#pragma once

#include <lockstep/arena.h>
#include <lockstep/bootstrap.h>
#include <lockstep/buffer.h>
#include <lockstep/errors.h>
#include <lockstep/work.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

namespace comm {
class Channel;
}  // namespace comm

// The bit-stable ones add in the order of the one reduction tree, whatever the engine, the world's
// size and the way a buffer was cut (docs/internals/reduction.md).
enum class Algorithm : std::uint8_t {
  kAutomatic = 0,        // direct: right for every size
  kDirect = 1,           // bit-stable; one round, ring's bytes
  kHalvingDoubling = 2,  // bit-stable; where the tree allows it, else direct
  kRing = 3,             // not bit-stable
  kTree = 4,             // bit-stable for one partial per worker; few messages, more bytes
  kNative = 5,           // the engine's own collective; not bit-stable
};

const char* name(Algorithm algorithm) noexcept;

struct ReduceOptions {
  // What the result means.
  ReduceOp op = ReduceOp::kSum;
  double factor = 1;  // the sum of floating-point elements is multiplied by it before it is rounded
                      // to their type; the same on every worker, which is not checked

  // How fast it comes.
  Algorithm algorithm = Algorithm::kAutomatic;
};

struct CommOptions {
  // How long one operation may take before it ends in Timeout. Longer tolerates slower
  // peers, shorter finds silent ones sooner.
  std::chrono::milliseconds timeout{300'000};

  // The network interface or address that an engine listens on; empty is the loopback.
  std::string interface_name;
};

// The workers of one generation, connected.
//
// Buffers may lie on a device where the engine has devices: a collective then begins on the device when the buffers'
// streams have come to where they are at the call. Work::wait_on is for those who go on on a stream, Work::wait for
// those who read on the host. Messages carry memory of the CPU.
//
// Threads:   one caller at a time per Comm; channels and splits are Comms of their own and may
//            be used from other threads. Engine threads stay inside.
// Blocking:  operations return at once with a Work; they run in the order of their calls. A short one
//            may lie until somebody waits for it, asks whether it is done, or starts the next: the
//            others have what they need of this worker from the call on.
// Failure:   Work::wait throws PeerLost, Timeout or Mismatch, and from then on this Comm, its
//            channels and its splits are dead: every later call throws the same, saying why and
//            who, by the ranks of the world. BadInput is thrown by the call and harms nothing.
// Ownership: buffers are borrowed until the returned Work completes; after a failure, peers may write
//            into memory of share() until they have ended, too. Destroying a Comm that has work
//            under way abandons it: peers see PeerLost.
class Comm {
 public:
  explicit Comm(std::shared_ptr<comm::Channel> channel);
  Comm(Comm&&) noexcept;
  Comm& operator=(Comm&&) noexcept;
  ~Comm();

  int rank() const;
  int size() const;
  const std::string& engine() const;          // "thread", "gloo" …
  std::chrono::milliseconds timeout() const;  // of one operation

  // Messages between two workers, in the order sent. Both sides name the same count and dtype.
  // Messages and collectives of a channel do not order each other.
  Work send(int to, Buffer data);
  Work recv(int from, Buffer data);

  // Takes a message that has arrived, or returns false; never blocks. On one channel, messages of
  // a peer are taken either with recv or with try_recv: mixing them is BadInput. Such a channel must
  // live as long as its peers send on it.
  bool try_recv(int from, Buffer data);

  // Every worker's `data` becomes the reduction over all workers.
  Work all_reduce(Buffer data, ReduceOptions options = {});

  // The same for memory of a device that lies apart: parts of one dtype, which do not overlap, are reduced as the one
  // buffer would be that they make up, and by a bit-stable algorithm with its bits. Every worker has parts of the same
  // counts, in the same order.
  Work all_reduce(std::vector<Buffer> parts, ReduceOptions options = {});

  // The reduction over `shards` logical shards, of which every worker holds a contiguous range as
  // the partials that plan/ says (plan::held_partials). All workers receive it in `result`, which
  // may be one of the partials.
  Work reduce(std::vector<Buffer> partials, int shards, Buffer result, ReduceOptions options = {});

  // What all_reduce (`shards` = size()) and reduce run by when an algorithm is asked for: `direct` where that one cannot
  // do it, such as `native` over an engine that has none.
  Algorithm runs(Algorithm asked, int shards) const;

  // `data` is cut into one slice per worker, of counts[r] elements (empty: as even as possible).
  // reduce_scatter leaves in slice rank() the reduction of it, and the other slices undefined;
  // all_gather fills every slice r from worker r's. reduce_scatter is always direct, hence
  // bit-stable: asking for another algorithm is BadInput.
  Work reduce_scatter(Buffer data, const std::vector<std::size_t>& counts = {},
                      ReduceOptions options = {});
  Work all_gather(Buffer data, const std::vector<std::size_t>& counts = {});

  Work broadcast(Buffer data, int root);
  Work barrier();

  // Memory that all workers reach: each asks for the bytes of its own arena (0: none) and maps
  // everybody's. Collectives move no byte of buffers in it that need not move. None where the
  // workers share no memory: on several hosts, or with an engine that knows no such. Collective,
  // and blocking; Unavailable, on every worker, when the host has not that much, and the Comm is
  // dead. Every worker keeps the handle as long as anybody passes buffers in it.
  std::shared_ptr<SharedArena> share(std::size_t bytes);

  // Memory of a device for buffers of this Comm. Unavailable when the device has not that much, BadInput
  // where the engine has no devices; neither harms the Comm.
  std::shared_ptr<DeviceArena> device_arena(Device device, std::size_t bytes);

  // A Comm over the same workers with an order of its own. The same id names the same channel on
  // every worker; 0 to 2^32 − 1, each once. With shm 128 channels and splits can be in use at a time.
  Comm channel(std::uint32_t id);

  // This worker goes no further, for a reason of its own: the others get PeerLost with it, where otherwise they would only
  // learn that it has left. This Comm, its channels and its splits are dead.
  void leave(const std::string& why) noexcept;

  // The same with an error that is about all of them, such as a Mismatch that a layer above has found: the others get it
  // as it is.
  void leave(const Error& error) noexcept;

  // A Comm over some of the workers, called by exactly those, with the same list; ranks follow the
  // list.
  Comm split(std::vector<int> ranks);

 private:
  friend class CallName;
  std::shared_ptr<comm::Channel> channel_;
};

// Names the call of the program that a Comm's collectives are part of while it lives, best at most 28 characters: messages
// then say "optimizer.step()" in place of the collectives that it is made of, and workers in different calls get a
// Mismatch. Inside of another one for the same Comm it does nothing.
//
// Threads:   that of the Comm.
// Blocking:  never.
// Failure:   none.
// Ownership: a scope; the Comm may be moved while it lives.
class [[nodiscard]] CallName {
 public:
  CallName(Comm& comm, std::string_view call);
  ~CallName();
  CallName(const CallName&) = delete;
  CallName& operator=(const CallName&) = delete;

 private:
  std::shared_ptr<comm::Channel> channel_;  // null inside of another
};

// Connects the workers of a bootstrap over an engine of this build. BadInput for an unknown name,
// Unavailable for one that was not built, with what to install.
Comm connect(const std::string& engine, Bootstrap& bootstrap, const CommOptions& options = {});

// A world of one: every collective returns at once, so that code for many needs no branch.
Comm connect_alone();

// The names of the engines that this build can use, and of those that it cannot with the reason.
struct EngineInfo {
  std::string name;
  bool built = false;
  std::string about;  // one phrase; for an engine that is not built, what to install
};
std::vector<EngineInfo> engines();

}  // namespace lockstep

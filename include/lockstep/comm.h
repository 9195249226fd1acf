// Messages and collectives between the workers of one generation.
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
struct Inside;
}  // namespace comm

// How a reduction is done. A bit-stable algorithm adds in the order of the reduction tree, with every engine, for every
// number of workers, and however a buffer is cut (docs/internals/reduction.md).
enum class Algorithm : std::uint8_t {
  kAutomatic = 0,        // direct, which is right for every size
  kDirect = 1,           // bit-stable; one round, and as many bytes as the ring algorithm
  kHalvingDoubling = 2,  // bit-stable; direct runs instead if the tree does not allow it
  kRing = 3,             // not bit-stable
  kTree = 4,             // bit-stable for one partial per worker; few messages, more bytes
  kNative = 5,           // the engine's own collective; not bit-stable
  kTwoLevels = 6,        // bit-stable; first over the workers of a host, then between hosts. All
                         // buffers are in memory of share_on_host(). Half types go by direct
};

const char* name(Algorithm algorithm) noexcept;

struct ReduceOptions {
  // What the result means.
  ReduceOp op = ReduceOp::kSum;
  double factor = 1;  // multiplies the sum of floating-point elements before the sum is rounded to
                      // their type. Must be the same on every worker; this is not checked

  // How fast it comes.
  Algorithm algorithm = Algorithm::kAutomatic;
};

// What protects messages between workers (engine tcp).
enum class Wire {
  kAuto,    // tags between hosts, none on one host
  kPlain,   // none: the network is trusted
  kTagged,  // a keyed tag with every frame: a changed, repeated or forged one is noticed
};

struct CommOptions {
  // How long one operation may take before it ends in Timeout. A long timeout tolerates slow peers.
  // A short one finds silent peers sooner.
  std::chrono::milliseconds timeout{300'000};

  // The network interface or address that an engine listens on. Empty: the loopback interface.
  std::string interface_name;

  // All workers must have the same.
  Wire wire = Wire::kAuto;

  // A name for the host of this worker. Workers with different names share no memory, even if they
  // could. Empty: what the kernel says.
  std::string host;
};

// The workers of one generation, connected.
//
// Buffers may be in memory of a device if the engine has devices. The collective then begins on the
// device after everything that was queued on the buffers' streams before the call. Use
// Work::wait_on to go on on a stream, and Work::wait to read the result on the host. Messages carry
// memory of the CPU only.
//
// Threads:   one caller at a time per Comm. Channels and splits are Comms of their own and may be
//            used from other threads. Engine threads stay inside.
// Blocking:  operations return a Work and wait for nobody; up to 1 MiB may be summed in the call.
//            They run in the order of the calls. One may stay queued until somebody waits for it,
//            asks whether it is done, or starts the next one. No peer waits for that: from the call
//            on, the others have what they need from this worker.
// Failure:   Work::wait throws PeerLost, Timeout or Mismatch. From then on this Comm, its channels
//            and its splits are dead: every later call throws the same error, which says why, and
//            which workers by their ranks in the world. BadInput is thrown by the call itself and
//            does no harm.
// Ownership: buffers are borrowed until the returned Work completes. After a failure a peer may
//            still write into memory of share() until that peer has ended, too. If a Comm is
//            destroyed while an operation runs, the operation is abandoned: peers see PeerLost.
class Comm {
 public:
  explicit Comm(std::shared_ptr<comm::Channel> channel);
  Comm(Comm&&) noexcept;
  Comm& operator=(Comm&&) noexcept;
  ~Comm();

  int rank() const;
  int size() const;
  const std::string& engine() const;          // "thread", "tcp" …
  std::chrono::milliseconds timeout() const;  // of one operation
  // The number of each worker's host, if two-levels can run: there are several hosts, and one has
  // several workers. Else empty.
  const std::vector<int>& hosts() const;

  // Messages between two workers. They arrive in the order in which they were sent. Both sides name
  // the same count and dtype. Messages do not wait for collectives of the same channel, nor
  // collectives for messages.
  Work send(int to, Buffer data);
  Work recv(int from, Buffer data);

  // Takes a message if one has arrived, else returns false. Never blocks. On one channel, take the
  // messages of a peer either with recv or with try_recv; both is BadInput. A channel with try_recv
  // must live as long as its peers send on it.
  bool try_recv(int from, Buffer data);

  // Replaces every worker's `data` by the reduction over all workers.
  Work all_reduce(Buffer data, ReduceOptions options = {});

  // The same for several parts in memory of a device. They have one dtype and do not overlap. They
  // are reduced as if they were one buffer; a bit-stable algorithm gives the bits of that one
  // buffer. Every worker passes parts with the same counts, in the same order.
  Work all_reduce(std::vector<Buffer> parts, ReduceOptions options = {});

  // The reduction over `shards` shards. Every worker hosts a contiguous range of them and passes
  // its partials as plan::held_partials lists them. All workers receive the result in `result`,
  // which may be one of the partials.
  Work reduce(std::vector<Buffer> partials, int shards, Buffer result, ReduceOptions options = {});

  // The algorithm that reduce() of float32 runs when `asked` is asked for; with `shards` = size() also that of
  // all_reduce(). It is `direct` if the algorithm cannot do it: `native`, for example, on an engine
  // that has none.
  Algorithm runs(Algorithm asked, int shards) const;

  // `data` is cut into one slice per worker; slice r has counts[r] elements. Without counts the
  // slices are as equal as possible. reduce_scatter leaves the reduction of slice rank() in that
  // slice, and leaves the other slices undefined. all_gather fills each slice r with that of worker
  // r. reduce_scatter always runs `direct`, so it is bit-stable; another algorithm is BadInput.
  Work reduce_scatter(Buffer data, const std::vector<std::size_t>& counts = {},
                      ReduceOptions options = {});
  Work all_gather(Buffer data, const std::vector<std::size_t>& counts = {});

  // Every worker passes one slice of `data` to each worker, itself included: slice t goes to worker
  // t, and slice f of `result` comes from worker f. The slice from worker f to worker t has
  // counts[f * size() + t] elements, which may be 0. All workers pass the same list, or none.
  // Without counts all slices of all workers have data.count / size() elements; a remainder is
  // BadInput. `data` and `result` have one dtype and one device, and do not overlap.
  Work all_to_all(Buffer data, Buffer result, const std::vector<std::size_t>& counts = {});

  Work broadcast(Buffer data, int root);
  Work barrier();

  // Memory that all workers can reach. Each worker says how many bytes its own arena has (0: none),
  // and maps the arenas of all. For buffers in this memory, collectives copy only what they must.
  // Returns null if the workers share no memory: on several hosts, or with an engine that cannot
  // share. Collective and blocking. If the host has too little memory, every worker gets
  // Unavailable, and the Comm is dead. Every worker keeps the handle as long as any worker passes
  // buffers in this memory. `kAlsoPrivate` maps every arena a second time, privately
  // (Arena::private_data).
  enum class Mappings : bool { kShared, kAlsoPrivate };
  std::shared_ptr<SharedArena> share(std::size_t bytes, Mappings mappings = Mappings::kShared);

  // The same among those workers of this Comm that are on this worker's host; ranks of the arenas
  // count only them. Null, on all workers, if the Comm has one host, if no host has two of its
  // workers, or if the engine cannot share. Then two-levels does not run. Collective and blocking.
  std::shared_ptr<SharedArena> share_on_host(std::size_t bytes);

  // Those workers of this Comm that are on this worker's host, as a Comm of their own. Only if
  // hosts() is not empty: else BadInput. Collective.
  Comm on_host();

  // Memory of a device for buffers of this Comm. Throws Unavailable if the device has too little
  // memory, BadInput if the engine has no devices. Neither harms the Comm.
  std::shared_ptr<DeviceArena> device_arena(Device device, std::size_t bytes);

  // A Comm over the same workers with its own order of operations. The same id names the same
  // channel on every worker. Ids are 0 to 2^32 − 1, each used once. At most 128
  // channels and splits whose workers share memory of a host can be in use at a time.
  Comm channel(std::uint32_t id);

  // Says that this worker ends, and why. The others get PeerLost with this reason. Without the call
  // they learn only that the worker has left. This Comm, its channels and its splits are dead.
  void leave(const std::string& why) noexcept;

  // The same with an error that concerns all workers, such as a Mismatch that a layer above has
  // found. The others get the same error.
  void leave(const Error& error) noexcept;

  // A Comm over some of the workers. Exactly those workers call it, all with the same list. Rank i
  // of the split is the i-th worker of the list.
  Comm split(std::vector<int> ranks);

 private:
  friend class CallName;
  friend struct comm::Inside;
  std::shared_ptr<comm::Channel> channel_;
};

// While it lives, a Comm's collectives belong to the named call of the program. Error messages then
// name the call, such as "optimizer.step()", before the collective. Workers that are in different
// calls get a Mismatch. A name should have at most 28 characters. Inside another CallName for the
// same Comm it does nothing.
//
// Threads:   the thread that uses the Comm.
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

// Connects the workers of a bootstrap over an engine. Throws BadInput for an unknown name. Throws
// Unavailable for an engine that is not in this build, and says what to install.
Comm connect(const std::string& engine, Bootstrap& bootstrap, const CommOptions& options = {});

// A Comm of one worker. Every collective returns at once, so code for many workers needs no branch.
Comm connect_alone(const CommOptions& options = {});

// One engine that Lockstep knows, and whether this build has it.
struct EngineInfo {
  std::string name;
  bool built = false;
  std::string about;  // one phrase; for an engine that is not built, what to install
};
std::vector<EngineInfo> engines();

}  // namespace lockstep

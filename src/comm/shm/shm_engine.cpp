// How the workers of a host come together in shared memory:
//
//   1. each worker makes its segment, and all map all of them (share_arenas: same user, secret
//      proven)
//   2. phase 1, watching: each worker has opened a pidfd for every peer, by the process number in
//      the peer's segment. That number may meanwhile belong to another process
//   3. phase 2, formed: a worker in this phase has seen phase 1 of all others. So it was alive
//      after they had opened their pidfds, and the pidfds are of the right process
//
// A worker that fails on the way writes the reason into its segment. For the others it has ended,
// as it would later.
#include "comm/shm/shm_engine.h"

#include <fmt/format.h>
#include <lockstep/arena.h>
#include <lockstep/errors.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/hash.h"
#include "base/process.h"
#include "comm/shm/shm_link.h"

namespace lockstep::comm {
namespace {

constexpr std::uint64_t kMagic = 0x6c6f636b73746570;  // "lockstep"
constexpr std::uint32_t kVersion = 3;
constexpr std::chrono::milliseconds kFormingInterval{5};

enum Phase : std::uint32_t { kWatching = 1, kFormed = 2 };

// All rings of a worker together take about 4 MiB. A ring has at most 256 KiB, and at least 32 KiB:
// a short message (16 KiB) always fits.
std::uint32_t ring_bytes_for(int size) {
  return std::clamp<std::uint32_t>((4U << 20) / static_cast<std::uint32_t>(size), 32U << 10,
                                   256U << 10) /
         64 * 64;
}

std::uint64_t pid_namespace() {
  const std::string name = base::process_namespace();
  std::uint64_t number = name.size();
  for (const char c : name) number = base::mix64(number ^ static_cast<unsigned char>(c));
  return number;
}

Arena make_segment(int rank, int size) {
  const std::uint32_t ring_bytes = ring_bytes_for(size);
  Arena arena = Arena::create(Segment::bytes_for(size, ring_bytes));
  auto* head = new (arena.data()) SegmentHead{};
  head->face = {kMagic, kVersion, rank, size, ring_bytes, ::getpid(), pid_namespace()};
  return arena;
}

SegmentHead& head_of(const Arena& segment) {
  return *reinterpret_cast<SegmentHead*>(segment.data());
}

void check_face(const Face& face, int rank, int size, std::uint32_t ring_bytes) {
  if (face.magic != kMagic || face.version != kVersion || face.rank != rank || face.size != size ||
      face.ring_bytes != ring_bytes) {
    throw Mismatch(
        fmt::format("rank {} has another layout of shared memory: it has another build of "
                    "Lockstep; start all workers from the same build",
                    rank),
        {rank});
  }
  if (face.pid_namespace != pid_namespace()) {
    throw Unavailable(
        fmt::format("rank {} runs in another container: use --engine tcp between them", rank));
  }
}

bool ended(const base::Fd& pidfd) {
  pollfd entry{pidfd.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

Failure died(int rank) {
  return {ErrorKind::kPeerLost, {rank}, fmt::format("rank {} died while the world formed", rank)};
}

class Forming {
 public:
  Forming(const Arena& mine, Bootstrap& bootstrap, Deadline deadline)
      : rank_(bootstrap.rank()), size_(bootstrap.size()), deadline_(deadline) {
    const std::uint32_t ring_bytes = ring_bytes_for(size_);
    auto arenas = share_arenas(mine, "shm/segments", bootstrap, deadline);
    for (int rank = 0; rank < size_; ++rank) {
      auto& arena = arenas[static_cast<std::size_t>(rank)];
      if (!arena) {
        throw Unavailable(fmt::format(
            "rank {} is on another host, and shm connects workers of one: use --engine tcp", rank));
      }
      if (arena->size() < Segment::bytes_for(size_, ring_bytes))
        throw Mismatch(fmt::format("rank {} shares less memory than it should", rank), {rank});
      world_.segments.emplace_back(std::move(*arena), size_, ring_bytes);
      check_face(face(rank), rank, size_, ring_bytes);
    }
    world_.rank = rank_;
    world_.secret = bootstrap.secret();
    world_.name = bootstrap.name();
  }

  ShmWorld run() {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != rank_ && face(rank).pid != ::getpid()) watch(rank);
    }
    reach(kWatching);
    reach(kFormed);
    return std::move(world_);
  }

 private:
  Face face(int rank) const { return segment(rank).head().face; }
  const Segment& segment(int rank) const { return world_.segments[static_cast<std::size_t>(rank)]; }

  void watch(int rank) {
    base::Fd pidfd = base::open_pidfd(face(rank).pid);
    if (!pidfd && errno == ESRCH) raise(died(rank));
    if (!pidfd) {
      const bool none_left = errno == EMFILE || errno == ENFILE;
      throw Unavailable(fmt::format("cannot watch the process of rank {} (pidfd_open: {}): {}",
                                    rank, std::strerror(errno),
                                    none_left ? "raise `ulimit -n`" : "use --engine tcp"));
    }
    world_.watched.push_back({rank, std::move(pidfd)});
  }

  // Says that this worker has come to this phase, and waits until all have.
  void reach(Phase phase) {
    Word& own = segment(rank_).head().phase;
    own.store(phase, std::memory_order_seq_cst);
    futex_wake_all(own);
    for (int rank = 0; rank < size_; ++rank) await(rank, phase);
  }

  void await(int rank, Phase phase) {
    const Word& word = segment(rank).head().phase;
    for (std::uint32_t seen = word.load(); seen < phase; seen = word.load()) {
      if (deadline_.expired()) {
        throw Timeout(fmt::format("rank {} did not join the shared memory in time", rank), {rank});
      }
      const auto end = end_of_a_peer();
      // Look at the phase again after a peer has ended: what it did before counts. A peer that
      // leaves a formed world has seen all workers in this phase.
      if (end && word.load() < phase) raise(*end);
      futex_wait(word, seen, earlier(deadline_, Deadline::after(kFormingInterval)));
    }
  }

  std::optional<Failure> end_of_a_peer() const {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      if (auto failure = read_notice(segment(rank).head().ended)) return failure;
    }
    for (const auto& [rank, pidfd] : world_.watched) {
      if (ended(pidfd)) return died(rank);
    }
    return std::nullopt;
  }

  int rank_;
  int size_;
  Deadline deadline_;
  ShmWorld world_;
};

}  // namespace

std::shared_ptr<Link> connect_shm(Bootstrap& bootstrap, const CommOptions& options) {
  const int rank = bootstrap.rank();
  const Arena mine = make_segment(rank, bootstrap.size());
  try {
    return make_shm_link(Forming(mine, bootstrap, Deadline::after(options.timeout)).run());
  } catch (const std::exception& error) {
    const Failure failure = failure_of(rank, error);
    publish(head_of(mine).ended, failure);
    raise(failure);
  }
}

}  // namespace lockstep::comm

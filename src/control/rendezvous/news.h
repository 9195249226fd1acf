// What a launcher and its workers tell each other while they train: a page of memory that workers inherit,
// LOCKSTEP_NEWS_FD. A worker looks at it between two batches, which costs a load. Other launchers have no such page.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/fd.h"

namespace lockstep::control {

// What a worker does in a step.
enum class Doing : std::uint8_t {
  kElse,  // nothing of a phase: it joins, reads, evaluates, writes a checkpoint, or is in the program's own code
  kComputes,  // its part of a phase, for which it needs nobody
  kWaits,     // for the others
};
struct Said {
  Doing doing = Doing::kElse;
  std::uint64_t phases = 0;  // that this process has begun

  bool operator==(const Said&) const = default;
};

// The page, which both sides map.
struct News {
  static constexpr std::uint64_t kMagic = 0x7377656e6b636f6c;
  std::uint64_t magic = kMagic;
  // By the launcher: workers for which the others are to meet between two batches. They wait to join, or are to leave.
  std::atomic<std::uint32_t> newcomers{0};
  // By workers: they can meet between two batches, and so many can train at most; 0: nobody has said so.
  std::atomic<std::uint32_t> most_workers{0};

  // By workers, each in its place: a Said. A line of the cache for each, because they write in every phase. Memory that is
  // not touched is not taken.
  static constexpr int kMostPlaces = 4096;
  struct alignas(64) Word {
    std::atomic<std::uint64_t> value{0};
  };
  Word said[kMostPlaces];
};

// Both ends of it.
//
// Threads:   any.
// Blocking:  never.
// Failure:   the launcher's throws Unavailable without memory or descriptors. A worker whose descriptor is no such page
//            gets no news.
// Ownership: owns its mapping; the launcher's also the descriptor, which closes on exec.
class NewsPage {
 public:
  static NewsPage make();                              // the launcher's
  static NewsPage inherited(std::optional<int> from);  // a worker's
  NewsPage(NewsPage&& other) noexcept;
  NewsPage& operator=(NewsPage&& other) noexcept;
  ~NewsPage();

  int fd() const { return fd_.get(); }
  void set_newcomers(int count) { page_->newcomers.store(static_cast<std::uint32_t>(count)); }
  int newcomers() const { return page_ == nullptr ? 0 : static_cast<int>(page_->newcomers.load()); }
  void set_most_workers(int most);
  int most_workers() const {
    return page_ == nullptr ? 0 : static_cast<int>(page_->most_workers.load());
  }

  // A phase is counted when its computing begins.
  void say(int place, Doing doing);
  Said said(int place) const;
  void forget(int place);  // another process has this place now

 private:
  NewsPage() = default;

  base::Fd fd_;
  News* page_ = nullptr;
};

}  // namespace lockstep::control

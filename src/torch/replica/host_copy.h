// One memory for all workers of a host, which each worker sees through a private mapping.
//
//   shared    what the owner of a slice writes, for all
//   seen      what the program of this worker reads, and may write to. Until it writes, it sees the
//             shared memory, and nothing was copied. What it writes only this worker sees, as if
//             the memory were its own: the kernel then gives it a page of its own (a written page)
//
// A written page stands still: it does not show what owners write later. So whoever lets owners
// write looks for written pages before, and renews them after. Renewed pages are given back to the
// kernel. But if a program writes much and often, they are copied and stay its own: else each write
// would cost some microseconds again. Then every worker has a copy, as without this class.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/written_pages.h"
#include "torch/replica/flat_memory.h"

namespace lockstep::replica {

// Threads:   one caller at a time.
// Blocking:  make(), which is collective; at most the Comm's timeout.
// Failure:   Unavailable if there is too little memory, or the kernel stops telling of pages.
// Ownership: the memory lives as long as this object or any tensor that views it.
class HostCopy {
 public:
  // Null, on all workers, if they share no memory, if there is one worker in all, or if the kernel
  // of a worker does not say which pages were written.
  static std::unique_ptr<HostCopy> make(const Workers& workers, std::size_t bytes);

  const FlatMemory& shared() const { return shared_; }
  const FlatMemory& seen() const { return seen_; }

  // Finds the pages that the program has written to. If this process had no page fault since the
  // last look, there are none: the first write to a page is one. Else it takes 20 ns to 70 ns for
  // each page of the memory on one thread, and uses all of LibTorch's.
  void look();
  // Of the values that were written, where they are not the shared ones; 0: there are none.
  std::uint64_t digest() const;

  // The written values of some bytes become the shared ones.
  void bring(base::ByteRange bytes);
  // The written pages show the shared memory again, as it is now; except for `kept` bytes, which
  // are in order and stay as they were written.
  void renew(const std::vector<base::ByteRange>& kept = {});

 private:
  HostCopy(FlatMemory shared, FlatMemory seen);
  bool works();  // whether the kernel tells of written pages
  void touch() const;
  void scan();
  void copy(base::ByteRange bytes);
  void copy_around(base::ByteRange pages, const std::vector<base::ByteRange>& kept);
  std::vector<base::ByteRange> pages_with(const std::vector<base::ByteRange>& kept) const;
  std::uint64_t digest_of_page(std::size_t begin) const;

  FlatMemory shared_;
  FlatMemory seen_;
  std::vector<base::ByteRange> written_;
  std::int64_t faults_ = -1;  // of this process, at the end of the last look
  int often_ = 0;             // a look that finds many new ones adds 2, any other takes 1 away
  bool copies_ =
      false;  // the program writes often, or has locked its pages: written pages are copied and stay
};

// As HostCopy::make(); null on a GPU. (device_choice.cpp)
std::unique_ptr<HostCopy> host_copy_on(Device device, const Workers& workers, std::size_t bytes);

}  // namespace lockstep::replica

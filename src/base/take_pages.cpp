#include "base/take_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

#include "base/written_pages.h"

namespace lockstep::base {
namespace {

// Not all kernels and headers have it; of Linux, those from 5.14 on.
#ifdef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#else
constexpr int kPopulateWrite = 23;
#endif

// `memory` is whole pages. A page of shared memory that is read is there, too.
void take(std::span<std::byte> memory) {
  if (memory.empty() || ::madvise(memory.data(), memory.size(), kPopulateWrite) == 0) return;
  for (std::size_t at = 0; at < memory.size(); at += page_bytes())
    static_cast<void>(*static_cast<volatile const std::byte*>(memory.data() + at));
}

}  // namespace

void take_pages(std::span<std::byte> memory, int threads) {
  const std::size_t page = page_bytes();
  const std::size_t before = reinterpret_cast<std::uintptr_t>(memory.data()) % page;
  std::byte* const first = memory.data() - before;
  const std::size_t pages = memory.empty() ? 0 : (before + memory.size() + page - 1) / page;
  const auto parts = static_cast<std::size_t>(std::max(threads, 1));
  const auto part = [&](std::size_t number) {
    const std::size_t begin = pages * number / parts;
    return std::span(first + begin * page, (pages * (number + 1) / parts - begin) * page);
  };
  std::vector<std::thread> others;
  std::size_t mine = 1;  // the parts from here to the end are taken by this thread, and the first
  try {
    for (; mine < parts; ++mine) others.emplace_back(take, part(mine));
  } catch (const std::system_error&) {  // no thread is left for this process
  }
  take(part(0));
  for (; mine < parts; ++mine) take(part(mine));
  for (std::thread& other : others) other.join();
}

}  // namespace lockstep::base

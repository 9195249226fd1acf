#include "torch/replica/host_copy.h"

#include <ATen/Parallel.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/hash.h"

namespace lockstep::replica {
namespace {

constexpr std::size_t kMany = 8;                // an eighth of all pages
constexpr std::int64_t kPagesOfAThread = 1024;  // 20 µs

base::PageRange common(base::PageRange a, base::PageRange b) {
  const std::size_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace

HostCopy::HostCopy(FlatMemory shared, FlatMemory seen)
    : shared_(std::move(shared)), seen_(std::move(seen)) {}

std::unique_ptr<HostCopy> HostCopy::make(Comm& comm, std::size_t bytes) {
  if (comm.size() == 1) return nullptr;
  FlatMemory shared(comm, bytes, Copies::kPerHost);
  if (!shared.shared()) return nullptr;
  FlatMemory seen = shared.privately();
  std::unique_ptr<HostCopy> copy(new HostCopy(std::move(shared), std::move(seen)));
  copy->touch();
  std::uint8_t works = copy->works() ? 1 : 0;
  comm.all_reduce({&works, 1, DType::kUInt8}, {.op = ReduceOp::kMin}).wait();
  return works != 0 ? std::move(copy) : nullptr;
}

// The first read of a page is a fault, too; without this, look() would take it for a write.
void HostCopy::touch() const {
  for (std::size_t at = 0; at < seen_.bytes(); at += base::page_bytes())
    static_cast<void>(*static_cast<volatile const std::byte*>(seen_.data() + at));
}

// Tried at the first page, which is given back.
bool HostCopy::works() {
  try {
    const base::PageRange first{0, base::page_bytes()};
    std::byte* const memory = seen_.data();
    *static_cast<volatile std::byte*>(memory) = std::byte{0};
    const bool found = base::written_pages(memory, first) == std::vector{first};
    base::drop_written(memory, first);
    return found && base::written_pages(memory, first).empty();
  } catch (const Unavailable&) {
    return false;
  }
}

// The count comes after the scan, which may have faults of its own.
void HostCopy::look() {
  if (!written_.empty() || base::page_faults() != faults_) scan();
  faults_ = base::page_faults();
  std::size_t bytes = 0;
  for (const base::PageRange& range : written_) bytes += range.bytes();
  often_ = bytes * kMany > seen_.bytes() ? often_ + 2 : std::max(often_ - 1, 0);
}

void HostCopy::scan() {
  const std::size_t page = base::page_bytes();
  const auto pages = static_cast<std::int64_t>((seen_.bytes() + page - 1) / page);
  std::vector<std::vector<base::PageRange>> found(static_cast<std::size_t>(at::get_num_threads()));
  at::parallel_for(0, pages, kPagesOfAThread, [&](std::int64_t begin, std::int64_t end) {
    found[static_cast<std::size_t>(at::get_thread_num())] = base::written_pages(
        seen_.data(),
        {static_cast<std::size_t>(begin) * page, static_cast<std::size_t>(end) * page});
  });
  written_.clear();
  for (const auto& part : found) written_.insert(written_.end(), part.begin(), part.end());
}

std::uint64_t HostCopy::digest() const {
  std::uint64_t digest = 0;
  for (const base::PageRange& range : written_) {
    for (std::size_t at = range.begin; at < range.end; at += base::page_bytes()) {
      const std::size_t bytes = std::min(base::page_bytes(), seen_.bytes() - at);
      if (std::memcmp(seen_.data() + at, shared_.data() + at, bytes) == 0) continue;
      digest = base::mix64(digest ^ at);
      for (std::size_t i = 0; i < bytes; i += sizeof(std::uint64_t)) {
        std::uint64_t word = 0;
        std::memcpy(&word, seen_.data() + at + i, std::min(sizeof word, bytes - i));
        digest = base::mix64(digest ^ word);
      }
      digest |= 1;  // never 0
    }
  }
  return digest;
}

void HostCopy::bring(base::PageRange bytes) {
  for (const base::PageRange& range : written_) {
    const base::PageRange part = common(range, bytes);
    std::memcpy(shared_.data() + part.begin, seen_.data() + part.begin, part.bytes());
  }
}

void HostCopy::drop_part(base::PageRange bytes) {
  for (const base::PageRange& range : written_) {
    const base::PageRange part = common(range, bytes);
    std::memcpy(seen_.data() + part.begin, shared_.data() + part.begin, part.bytes());
  }
}

void HostCopy::drop() {
  for (const base::PageRange& range : written_) base::drop_written(seen_.data(), range);
  written_.clear();
}

}  // namespace lockstep::replica

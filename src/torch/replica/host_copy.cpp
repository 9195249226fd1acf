#include "torch/replica/host_copy.h"

#include <ATen/Parallel.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/hash.h"

namespace lockstep::replica {
namespace {

constexpr std::size_t kMany = 8;  // an eighth of all pages
constexpr int kOften = 4;
constexpr std::int64_t kPagesOfAThread = 1024;
constexpr std::int64_t kBytesOfAThread = 1 << 18;
constexpr std::size_t kLineBytes = 64;

base::ByteRange common(base::ByteRange a, base::ByteRange b) {
  const std::size_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

std::size_t bytes_of(const std::vector<base::ByteRange>& ranges) {
  std::size_t bytes = 0;
  for (const base::ByteRange& range : ranges) bytes += range.bytes();
  return bytes;
}

// Where the pages of some ranges begin.
std::vector<std::size_t> pages_of(const std::vector<base::ByteRange>& ranges) {
  std::vector<std::size_t> pages;
  for (const base::ByteRange& range : ranges) {
    for (std::size_t at = range.begin; at < range.end; at += base::page_bytes())
      pages.push_back(at);
  }
  return pages;
}

// What of `all` is not in `some`, which are parts of `all`; both are in order.
std::vector<base::ByteRange> without(const std::vector<base::ByteRange>& all,
                                     const std::vector<base::ByteRange>& some) {
  std::vector<base::ByteRange> left;
  auto next = some.begin();
  for (const base::ByteRange& range : all) {
    std::size_t at = range.begin;
    for (; next != some.end() && next->begin < range.end; ++next) {
      if (next->begin > at) left.push_back({at, next->begin});
      at = next->end;
    }
    if (at < range.end) left.push_back({at, range.end});
  }
  return left;
}

}  // namespace

HostCopy::HostCopy(FlatMemory shared, FlatMemory seen)
    : shared_(std::move(shared)), seen_(std::move(seen)) {}

std::unique_ptr<HostCopy> HostCopy::make(const Workers& workers, std::size_t bytes) {
  if (workers.all.size() == 1) return nullptr;
  FlatMemory shared(workers.host, bytes, Copies::kPerHostSeen);
  if (!shared.shared()) return nullptr;
  FlatMemory seen = shared.privately();
  std::unique_ptr<HostCopy> copy(new HostCopy(std::move(shared), std::move(seen)));
  copy->touch();
  std::uint8_t works = copy->works() ? 1 : 0;
  workers.all.all_reduce({&works, 1, DType::kUInt8}, {.op = ReduceOp::kMin}).wait();
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
    const base::ByteRange first{0, base::page_bytes()};
    std::byte* const memory = seen_.data();
    *static_cast<volatile std::byte*>(memory) = std::byte{0};
    const bool found = base::written_pages(memory, first) == std::vector{first};
    return base::drop_written(memory, first) && found && base::written_pages(memory, first).empty();
  } catch (const Unavailable&) {
    return false;
  }
}

// The count comes after the scan, which may have faults of its own.
void HostCopy::look() {
  const std::size_t before = bytes_of(written_);
  if (before > 0 || base::page_faults() != faults_) scan();
  faults_ = base::page_faults();
  const std::size_t now = bytes_of(written_);
  const bool many = now > before && (now - before) * kMany > seen_.bytes();
  often_ = many ? often_ + 2 : std::max(often_ - 1, 0);
  copies_ = copies_ || often_ >= kOften;
}

void HostCopy::scan() {
  const std::size_t page = base::page_bytes();
  const auto pages = static_cast<std::int64_t>((seen_.bytes() + page - 1) / page);
  std::vector<std::vector<base::ByteRange>> found(static_cast<std::size_t>(at::get_num_threads()));
  at::parallel_for(0, pages, kPagesOfAThread, [&](std::int64_t begin, std::int64_t end) {
    found[static_cast<std::size_t>(at::get_thread_num())] = base::written_pages(
        seen_.data(),
        {static_cast<std::size_t>(begin) * page, static_cast<std::size_t>(end) * page});
  });
  written_.clear();
  for (const auto& part : found) written_.insert(written_.end(), part.begin(), part.end());
}

// Of each page that differs, the first line that does.
std::uint64_t HostCopy::digest() const {
  const std::vector<std::size_t> pages = pages_of(written_);
  std::atomic<std::uint64_t> digest = 0;
  at::parallel_for(0, static_cast<std::int64_t>(pages.size()), kPagesOfAThread,
                   [&](std::int64_t begin, std::int64_t end) {
                     std::uint64_t part = 0;
                     for (std::int64_t i = begin; i < end; ++i)
                       part ^= digest_of_page(pages[static_cast<std::size_t>(i)]);
                     digest ^= part;
                   });
  return digest;
}

std::uint64_t HostCopy::digest_of_page(std::size_t begin) const {
  const std::size_t end = std::min(begin + base::page_bytes(), seen_.bytes());
  for (std::size_t at = begin; at < end; at += kLineBytes) {
    const std::size_t bytes = std::min(kLineBytes, end - at);
    if (std::memcmp(seen_.data() + at, shared_.data() + at, bytes) == 0) continue;
    std::array<std::uint64_t, kLineBytes / 8> line{};
    std::memcpy(line.data(), seen_.data() + at, bytes);
    std::uint64_t digest = base::mix64(at + 1);
    for (const std::uint64_t word : line) digest = base::mix64(digest ^ word);
    return digest;
  }
  return 0;
}

void HostCopy::bring(base::ByteRange bytes) {
  for (const base::ByteRange& range : written_) {
    const base::ByteRange part = common(range, bytes);
    std::memcpy(shared_.data() + part.begin, seen_.data() + part.begin, part.bytes());
  }
}

void HostCopy::copy(base::ByteRange bytes) {
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    std::memcpy(seen_.data() + begin, shared_.data() + begin,
                static_cast<std::size_t>(end - begin));
  };
  at::parallel_for(static_cast<std::int64_t>(bytes.begin), static_cast<std::int64_t>(bytes.end),
                   kBytesOfAThread, body);
}

// Copies all bytes of some pages, except for those that are kept.
void HostCopy::copy_around(base::ByteRange pages, const std::vector<base::ByteRange>& kept) {
  std::size_t at = pages.begin;
  for (const base::ByteRange& part : kept) {
    const base::ByteRange here = common(part, pages);
    if (here.bytes() == 0) continue;
    copy({at, here.begin});
    at = here.end;
  }
  copy({at, std::max(at, std::min(pages.end, seen_.bytes()))});
}

void HostCopy::renew(const std::vector<base::ByteRange>& kept) {
  if (written_.empty()) return;
  std::vector<base::ByteRange> stay = copies_ ? written_ : pages_with(kept);
  for (const base::ByteRange& pages : without(written_, stay))
    copies_ = !base::drop_written(seen_.data(), pages) || copies_;
  if (copies_) stay = written_;
  for (const base::ByteRange& pages : stay) copy_around(pages, kept);
  written_ = std::move(stay);
}

// The written pages that some of `kept` is in.
std::vector<base::ByteRange> HostCopy::pages_with(const std::vector<base::ByteRange>& kept) const {
  const std::size_t page = base::page_bytes();
  std::vector<base::ByteRange> found;
  for (const base::ByteRange& range : written_) {
    for (const base::ByteRange& part : kept) {
      base::ByteRange here = common(range, part);
      if (here.bytes() == 0) continue;
      here = {here.begin / page * page, (here.end + page - 1) / page * page};
      if (!found.empty() && found.back().end >= here.begin)
        found.back().end = here.end;
      else
        found.push_back(here);
    }
  }
  return found;
}

}  // namespace lockstep::replica

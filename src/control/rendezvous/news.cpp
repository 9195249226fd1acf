#include "control/rendezvous/news.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace lockstep::control {

NewsPage NewsPage::make() {
  NewsPage news;
  news.fd_ = base::Fd(::memfd_create("lockstep-news", MFD_CLOEXEC));
  void* memory = MAP_FAILED;
  if (news.fd_ && ::ftruncate(news.fd_.get(), sizeof(News)) == 0)
    memory = ::mmap(nullptr, sizeof(News), PROT_READ | PROT_WRITE, MAP_SHARED, news.fd_.get(), 0);
  if (memory == MAP_FAILED) {
    throw Unavailable(
        fmt::format("no page to tell workers of newcomers: {}", std::strerror(errno)));
  }
  news.page_ = static_cast<News*>(memory);  // all zero, as the kernel gives it
  news.page_->magic = News::kMagic;
  return news;
}

// The program may have closed the descriptor and opened another file under the same number.
NewsPage NewsPage::inherited(std::optional<int> from) {
  NewsPage news;
  struct stat file {};
  if (!from || ::fstat(*from, &file) != 0 || file.st_size != sizeof(News)) return news;
  void* const memory = ::mmap(nullptr, sizeof(News), PROT_READ | PROT_WRITE, MAP_SHARED, *from, 0);
  if (memory == MAP_FAILED) return news;
  news.page_ = static_cast<News*>(memory);
  if (news.page_->magic != News::kMagic) {
    ::munmap(memory, sizeof(News));
    news.page_ = nullptr;
  }
  return news;
}

void NewsPage::set_most_workers(int most) {
  if (page_ != nullptr) page_->most_workers.store(static_cast<std::uint32_t>(most));
}

namespace {

constexpr std::uint64_t kDoingBits = 2;

}  // namespace

void NewsPage::say(int place, Doing doing) {
  if (page_ == nullptr || place < 0 || place >= News::kMostPlaces) return;
  auto& word = page_->said[place].value;  // only this worker writes it
  const std::uint64_t phases =
      (word.load(std::memory_order_relaxed) >> kDoingBits) + (doing == Doing::kComputes ? 1 : 0);
  word.store((phases << kDoingBits) | static_cast<std::uint64_t>(doing), std::memory_order_relaxed);
}

Said NewsPage::said(int place) const {
  if (page_ == nullptr || place < 0 || place >= News::kMostPlaces) return {};
  const std::uint64_t word = page_->said[place].value.load(std::memory_order_relaxed);
  const auto doing = word & ((1U << kDoingBits) - 1);
  return {
      doing > static_cast<std::uint64_t>(Doing::kWaits) ? Doing::kElse : static_cast<Doing>(doing),
      word >> kDoingBits};
}

void NewsPage::forget(int place) {
  if (page_ != nullptr && place >= 0 && place < News::kMostPlaces)
    page_->said[place].value.store(0, std::memory_order_relaxed);
}

NewsPage::NewsPage(NewsPage&& other) noexcept
    : fd_(std::move(other.fd_)), page_(std::exchange(other.page_, nullptr)) {}

NewsPage& NewsPage::operator=(NewsPage&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(page_, other.page_);
  return *this;
}

NewsPage::~NewsPage() {
  if (page_ != nullptr) ::munmap(page_, sizeof(News));
}

}  // namespace lockstep::control

// A process that is short of descriptors.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>

#include <optional>
#include <string>

#include "tests/support/workers.h"

namespace lockstep::testing {

// From here on this process can open `free` more descriptors; as many as before from the destructor on.
class FewDescriptors {
 public:
  explicit FewDescriptors(int free) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = 0;
    for (int left = free; left >= 0; ++few.rlim_cur) {
      if (::fcntl(static_cast<int>(few.rlim_cur), F_GETFD) < 0) --left;
    }
    --few.rlim_cur;  // the first that is not to be had
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

// Passes on everything; leaves few descriptors to its process once this has heard of every other worker.
class FewAfterwards : public Wrapped {
 public:
  FewAfterwards(Bootstrap& inner, int free) : Wrapped(inner), free_(free) {}
  std::string get(std::string_view key, Deadline deadline) override {
    std::string value = Wrapped::get(key, deadline);
    if (++heard_ == size() - 1) few_.emplace(free_);
    return value;
  }

 private:
  int free_;
  int heard_ = 0;
  std::optional<FewDescriptors> few_;
};

}  // namespace lockstep::testing

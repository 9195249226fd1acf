// A process that is short of descriptors.
#pragma once

#include <fcntl.h>
#include <lockstep/comm.h>
#include <sys/resource.h>

#include <optional>
#include <string>

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
class FewAfterwards : public Bootstrap {
 public:
  FewAfterwards(Bootstrap& inner, int free) : inner_(inner), free_(free) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string name() const override { return inner_.name(); }
  std::string secret() const override { return inner_.secret(); }
  void put(std::string_view key, std::string_view value, Deadline deadline) override {
    inner_.put(key, value, deadline);
  }
  std::string get(std::string_view key, Deadline deadline) override {
    std::string value = inner_.get(key, deadline);
    if (++heard_ == size() - 1) few_.emplace(free_);
    return value;
  }

 private:
  Bootstrap& inner_;
  int free_;
  int heard_ = 0;
  std::optional<FewDescriptors> few_;
};

}  // namespace lockstep::testing

#include "bench/turns.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <sstream>

#include "base/environment.h"

namespace lockstep::bench {
namespace {

constexpr const char* kVariable = "LOCKSTEP_BENCH_TURNS";
constexpr char kGo = 'g';
constexpr char kOver = 'o';

void send(const std::vector<base::Pipe>& pipes, char what) {
  for (const base::Pipe& pipe : pipes)
    [[maybe_unused]] const ssize_t sent = ::write(pipe.write.get(), &what, 1);
}

}  // namespace

TurnGiver::TurnGiver(const std::vector<int>& workers, int turns)
    : said_(base::make_pipe()), systems_(workers.size()), turns_(turns) {
  if (workers.size() > std::numeric_limits<unsigned char>::max())
    throw BadInput("too many systems for one run: leave out some rows");
  for (std::size_t i = 0; i < workers.size(); ++i) {
    for (int rank = 0; rank < workers[i]; ++rank) systems_[i].go.push_back(base::make_pipe());
  }
}

Program::Variables TurnGiver::variables(std::size_t system) const {
  std::string value = fmt::format("{} {} {} {}", ::getpid(), system, turns_, said_.write.get());
  for (const base::Pipe& pipe : systems_[system].go) value += fmt::format(" {}", pipe.read.get());
  return {{kVariable, value}};
}

void TurnGiver::readable() {
  unsigned char numbers[256];
  const ssize_t got = ::read(said_.read.get(), numbers, sizeof numbers);
  for (ssize_t i = 0; i < got; ++i) {
    if (numbers[i] < systems_.size()) ++systems_[numbers[i]].waiting;
  }
  give();
}

void TurnGiver::ended(std::size_t system) {
  systems_[system].ended = true;
  give();
}

bool TurnGiver::nobody_runs() const {
  return std::all_of(systems_.begin(), systems_.end(),
                     [](const System& system) { return system.ended || system.all_wait(); });
}

// The first of those that had the fewest turns.
TurnGiver::System* TurnGiver::next() {
  System* first = nullptr;
  for (System& system : systems_) {
    if (system.ended || system.given == turns_) continue;
    if (first == nullptr || system.given < first->given) first = &system;
  }
  return first;
}

void TurnGiver::give() {
  if (over_ || !nobody_runs()) return;
  System* const chosen = next();
  if (chosen == nullptr) {
    over_ = true;
    for (const System& system : systems_) send(system.go, kOver);
    return;
  }
  chosen->waiting = 0;
  ++chosen->given;
  send(chosen->go, kGo);
}

TurnTaker::TurnTaker() {
  const std::string value = base::environment(kVariable).value_or("");
  if (value.empty()) return;
  std::istringstream words(value);
  int command = 0;
  int system = 0;
  int say = 0;
  words >> command >> system >> turns_ >> say;
  int go = -1;
  for (std::int64_t rank = base::environment_number("RANK", 0, 1 << 20).value_or(0); rank >= 0;
       --rank)
    words >> go;
  const auto open = [command](int fd, int how) {
    return base::Fd(::open(fmt::format("/proc/{}/fd/{}", command, fd).c_str(), how | O_CLOEXEC));
  };
  system_ = static_cast<unsigned char>(system);
  say_ = open(say, O_WRONLY);
  go_ = open(go, O_RDONLY);
  if (!words || !say_ || !go_ || turns_ < 1)
    throw BadInput(fmt::format("{} is set by `lockstep bench`, and not by hand", kVariable));
}

bool TurnTaker::wait() {
  if (!go_) return taken_++ == 0;
  char what = kOver;
  return ::write(say_.get(), &system_, 1) == 1 && ::read(go_.get(), &what, 1) == 1 && what == kGo;
}

}  // namespace lockstep::bench

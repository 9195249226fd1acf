#include "torch/step/order_file.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/atomic_file.h"
#include "base/fd.h"
#include "base/files.h"
#include "base/log.h"
#include "formats/file_bytes.h"

namespace lockstep::steps {

plan::Order load_order(const std::string& path) {
  const auto bytes = formats::read_whole(path);
  return plan::parse_order({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

OrderFile::OrderFile(std::string path, std::string job, int shards)
    : path_(std::move(path)), job_(std::move(job)), shards_(shards) {
  if (base::exists(path_) && !formats::read_whole(path_).empty())
    before_ = load_order(path_);
  else
    base::write_file(path_, plan::order_head(job_, shards_));
}

void OrderFile::add(const plan::RoundOrder& round) {
  const std::string text = plan::order_text(round);
  if (!std::exchange(begun_, true)) {
    std::string all = plan::order_head(job_, shards_);
    if (round.steps.first > 0 && !before_.rounds.empty() && before_.job != job_) {
      throw BadInput(
          fmt::format("{} has the order of another job: give a new file for the steps from {} on",
                      path_, round.steps.first));
    }
    const bool is_known = std::any_of(
        before_.rounds.begin(), before_.rounds.end(),
        [&](const plan::RoundOrder& before) { return before.steps.end == round.steps.first; });
    if (round.steps.first > 0 && !is_known) {
      base::log(
          base::LogLevel::kWarn,
          "{} has no order of the steps before {}, which a replay needs: another host may have it",
          path_, round.steps.first);
    }
    for (const plan::RoundOrder& before : std::exchange(before_, {}).rounds) {
      if (before.steps.first >= round.steps.first) break;
      if (before.steps.end > round.steps.first) {
        throw BadInput(
            fmt::format("{} has a round over step {}, which begins one here: give a new file",
                        path_, round.steps.first));
      }
      all += plan::order_text(before);
    }
    base::write_file(path_, all + text);
    return;
  }
  const base::Fd file(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  std::string_view rest = text;
  while (file && !rest.empty()) {
    const ssize_t written = ::write(file.get(), rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) break;
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  if (!rest.empty())
    throw Unavailable(fmt::format("cannot write {}: {}", path_, std::strerror(errno)));
}

}  // namespace lockstep::steps

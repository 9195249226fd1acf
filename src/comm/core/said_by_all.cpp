#include "comm/core/said_by_all.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <optional>

#include "base/bytes.h"
#include "base/environment.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;

// What rank 0 passes on if a rank has said nothing. No value is so long that a list of values begins with this.
constexpr std::string_view kLate = "late ";
// It gives up so much earlier than the others that they hear of it.
constexpr milliseconds kForTheOthers{500};

Timeout late(int rank, const std::string& topic) {
  return Timeout(fmt::format("rank {} has said nothing of itself ({}) in time: it is stopped or "
                             "hangs, or its host is too slow",
                             rank, topic),
                 {rank});
}

// The values of all workers, in a row; or who is late.
std::string gathered(Bootstrap& bootstrap, const std::string& topic, Deadline deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline.left());
  const Deadline sooner = Deadline::after(left - std::min(kForTheOthers, left / 4));
  base::ByteWriter all;
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    try {
      all.put_text(bootstrap.get(fmt::format("{}/{}", topic, rank), sooner));
    } catch (const Timeout&) {
      return fmt::format("{}{}", kLate, rank);
    }
  }
  return all.bytes();
}

std::optional<int> late_in(std::string_view bytes, int size) {
  if (!bytes.starts_with(kLate)) return std::nullopt;
  const auto rank = base::parse_number(std::string(bytes.substr(kLate.size())));
  if (!rank || *rank < 0 || *rank >= size) return std::nullopt;
  return static_cast<int>(*rank);
}

std::string asked(Bootstrap& bootstrap, const std::string& topic, const std::string& key,
                  Deadline deadline) {
  try {
    return bootstrap.get(key, deadline);
  } catch (const Timeout&) {
    throw late(0, topic);
  }
}

}  // namespace

std::vector<std::string> said_by_all(Bootstrap& bootstrap, const std::string& topic,
                                     const std::string& own, Deadline deadline) {
  const std::string key_of_all = topic + "/all";
  bootstrap.put(fmt::format("{}/{}", topic, bootstrap.rank()), own, deadline);
  if (bootstrap.rank() == 0)
    bootstrap.put(key_of_all, gathered(bootstrap, topic, deadline), deadline);
  const std::string bytes = asked(bootstrap, topic, key_of_all, deadline);
  if (const auto rank = late_in(bytes, bootstrap.size())) throw late(*rank, topic);
  base::ByteReader reader(bytes);
  std::vector<std::string> values;
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    values.emplace_back(reader.get_text(kMostSaidBytes));
    if (!reader.ok()) {
      throw Mismatch(
          fmt::format("what rank {} says of itself ({}) cannot be read: some workers are "
                      "of another build",
                      rank, topic),
          {rank});
    }
  }
  if (!reader.done())
    throw Mismatch(
        fmt::format("rank 0 says more than was asked for ({}): it is of another build", topic),
        {0});
  return values;
}

}  // namespace lockstep::comm

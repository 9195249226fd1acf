#include "comm/core/said_by_all.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include "base/bytes.h"

namespace lockstep::comm {

std::vector<std::string> said_by_all(Bootstrap& bootstrap, const std::string& topic,
                                     const std::string& own, Deadline deadline) {
  const auto key_of = [&](int rank) { return fmt::format("{}/{}", topic, rank); };
  const std::string key_of_all = topic + "/all";
  bootstrap.put(key_of(bootstrap.rank()), own, deadline);
  if (bootstrap.rank() == 0) {
    base::ByteWriter all;
    for (int rank = 0; rank < bootstrap.size(); ++rank)
      all.put_text(bootstrap.get(key_of(rank), deadline));
    bootstrap.put(key_of_all, all.bytes(), deadline);
  }
  const std::string bytes = bootstrap.get(key_of_all, deadline);
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

#include "comm/tcp/tcp_engine.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/arena/offer.h"
#include "comm/core/said_by_all.h"
#include "comm/tcp/forming.h"
#include "comm/tcp/tcp_link.h"

namespace lockstep::comm {
namespace {

std::vector<TcpPlace> places_of_all(Bootstrap& bootstrap, const TcpPlace& own, Deadline deadline) {
  std::vector<TcpPlace> places;
  for (const std::string& said : said_by_all(bootstrap, "tcp/place", encode(own), deadline)) {
    const int rank = static_cast<int>(places.size());
    auto place = decode_place(said);
    if (!place) {
      throw Mismatch(
          fmt::format("rank {} does not say where it listens: it is of another build", rank),
          {rank});
    }
    if (place->wire != own.wire) {
      throw Mismatch(fmt::format("rank {} protects its wire in another way than rank {}: set "
                                 "LOCKSTEP_WIRE to the same value everywhere",
                                 rank, bootstrap.rank()),
                     {rank});
    }
    places.push_back(std::move(*place));
  }
  return places;
}

// Whether this host has more workers than cores.
bool crowded(const std::vector<TcpPlace>& places, const std::string& here) {
  const auto workers = std::count_if(places.begin(), places.end(),
                                     [&](const TcpPlace& place) { return place.host == here; });
  return workers > ::sysconf(_SC_NPROCESSORS_ONLN);
}

}  // namespace

void check_tcp(const CommOptions& options) {
  static_cast<void>(listen_on(options.interface_name));
}

std::shared_ptr<Link> connect_tcp(Bootstrap& bootstrap, const CommOptions& options) {
  const auto deadline = Deadline::after(options.timeout);
  TcpListener listener = listen_on(options.interface_name);
  const TcpPlace own{listener.address, host_name(options.host), options.wire};
  const std::vector<TcpPlace> places = places_of_all(bootstrap, own, deadline);
  const base::PairWorld world{"tcp " + bootstrap.name(), bootstrap.secret(), bootstrap.rank(),
                              bootstrap.size()};
  auto connections = Forming(world, std::move(listener), places).run(deadline);
  TcpWorld formed{world.rank, world.size, crowded(places, own.host), {}};
  for (int rank = 0; rank < world.size; ++rank) {
    const TcpPlace& place = places[static_cast<std::size_t>(rank)];
    auto& connection = connections[static_cast<std::size_t>(rank)];
    const bool elsewhere = place.host != own.host;
    const bool tagged = options.wire == Wire::kTagged || (options.wire == Wire::kAuto && elsewhere);
    formed.peers.push_back({connection ? std::move(*connection) : TcpConnection{},
                            place.address.host, tagged, elsewhere});
  }
  return make_tcp_link(std::move(formed));
}

}  // namespace lockstep::comm

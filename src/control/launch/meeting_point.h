// Where the workers of a job meet, on the launcher's side: the rendezvous server of node 0, the processes that run, and
// what workers are told while they train.
#pragma once

#include <utility>  // Boost 1.74's Asio uses std::exchange and does not include this

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "control/launch/hangs.h"
#include "control/launch/judge.h"
#include "control/launch/meeting.h"
#include "control/rendezvous/news.h"
#include "control/rendezvous/server.h"

namespace lockstep::control {

// Threads:   where the io_context runs.
// Blocking:  never.
// Failure:   none.
// Ownership: owns the server and the page; the io_context and the judge must outlive it.
class MeetingPoint {
 public:
  // Serves the listener of `meeting`, if there is one. With `news`, workers may leave and join, and the judge hears of it.
  MeetingPoint(boost::asio::io_context& context, const RunOptions& options, Meeting& meeting,
               std::optional<NewsPage> news, Judge& judge);

  // Ranks count over all hosts.
  void take(const KeeperEvent& event);

  // Why the job cannot have so many workers now; nothing if it can, as far as its workers are concerned.
  std::optional<std::string> objection(int workers) const;
  // It is to have so many from now on.
  void resize(int workers);

  // The host of these workers leaves, between two batches.
  void dismiss(const std::vector<int>& ranks);

  // A host has joined: there are more places, and all are to be filled.
  void set_map(const HostMap& map);

  // So many wait to join; where another launcher has the server.
  void set_newcomers(int count);

  // Workers of this host whose processes run.
  int running() const;

  // No process of the job is left: nobody is served from here on. What the launcher says of the end stays its last words.
  void close() { server_.reset(); }

 private:
  void tell_server();
  void take_formed(std::uint64_t generation, const std::vector<int>& places);
  void look_for_first_phase();
  void take_end(const WorkerEnd& end);
  void look_for_hangs();
  void end_hung(const Hangs::Found& found);

  HostMap map_;
  std::optional<int> stopped_code_;
  Judge& judge_;
  std::optional<NewsPage> news_;
  std::optional<RendezvousServer> server_;
  std::map<int, pid_t> running_;  // places and their processes; 0: about to be started
  std::set<int> members_;         // places of the last generation, with the same processes
  std::set<int> hung_;            // places that are to be ended
  Hangs hangs_;
  boost::asio::steady_timer look_again_;
  FirstPhase first_phase_;
  boost::asio::steady_timer look_soon_;  // for it
};

}  // namespace lockstep::control

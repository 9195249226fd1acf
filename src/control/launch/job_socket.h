// Where a launcher can be asked, from another terminal of the same user: what runs, another number of workers, the end.
//
// An abstract socket with the user and the job's id in its name. It is no file, so nothing is left of it when the launcher
// is killed; `lockstep jobs` finds it in /proc/net/unix. The kernel says who connects (SO_PEERCRED), and another user is
// dropped before a byte of it is read.
#pragma once

#include <utility>  // Boost 1.74's Asio uses std::exchange and does not include this

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/fd.h"
#include "control/launch/job_request.h"
#include "lockstep/deadline.h"

namespace lockstep::control {

// The launcher's end.
//
// Threads:   where the io_context runs.
// Blocking:  never. A connection that says nothing is dropped after some seconds, or if newer ones need its place.
// Failure:   none: without a socket the job runs, and is not listed.
// Ownership: owns the socket and its connections; the io_context must outlive it.
class JobSocket {
 public:
  using Answer = std::function<JobAnswer(const JobRequest&)>;

  JobSocket(boost::asio::io_context& context, Answer answer);
  ~JobSocket();
  JobSocket(const JobSocket&) = delete;
  JobSocket& operator=(const JobSocket&) = delete;

  // Of the job; empty if there is no socket.
  const std::string& id() const { return id_; }

 private:
  class Caller;

  void wait();
  void pause();
  void admit_all();
  int admit();
  bool drop_oldest();

  boost::asio::io_context& context_;
  Answer answer_;
  std::string id_;
  boost::asio::posix::stream_descriptor listening_;
  boost::asio::steady_timer pause_;
  std::map<std::uint64_t, std::shared_ptr<Caller>> callers_;  // by age
  std::uint64_t last_caller_ = 0;
};

// The jobs of all users on this host.
std::vector<JobName> jobs_on_this_host();

// Asks a job of this user, again if its launcher drops the connection for newer ones. Unavailable, with the reason, if it
// does not answer by the deadline.
JobAnswer ask_job(const JobName& job, const JobRequest& request, Deadline deadline);

}  // namespace lockstep::control

// One connection as the server sees it: a socket around a Session.
#pragma once

#include <utility>

#include <array>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "base/fd.h"
#include "control/rendezvous/roster.h"
#include "control/rendezvous/session.h"

namespace lockstep::control {

struct Departure {
  std::string why;        // a phrase: "closed the connection"
  bool in_order = false;  // as a worker may leave at any time, alive or dead
};

// What a connection tells its owner.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;

  // A genuine message; false: it makes no sense, end the connection.
  virtual bool on_message(ConnectionId from, const Message& message) = 0;
  // The connection is over, for a reason as a phrase; told once, and never from within a call.
  virtual void on_end(ConnectionId connection, const Departure& departure) = 0;
};

// Threads:   those of its io_context, one at a time.
// Blocking:  never.
// Failure:   ends, and tells its owner why.
// Ownership: owns the socket; outstanding operations keep it alive; the owner must outlive it or
//            call abandon().
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(boost::asio::io_context& context, ConnectionId id, base::Fd fd, Session session,
             std::weak_ptr<ConnectionOwner> owner);

  // Reads until the end; a peer that is not trust()ed by then is dropped after `time_to_prove`.
  void start(std::chrono::milliseconds time_to_prove);
  void trust();
  bool trusted() const { return trusted_; }

  void send(const Message& message);

  // Ends it now; the owner hears of it from the io_context.
  void end(Departure departure);
  // Ends it now, and the owner hears nothing.
  void abandon();

 private:
  void read();
  void on_read(std::size_t count);
  void write();
  void on_written();

  ConnectionId id_;
  boost::asio::generic::stream_protocol::socket socket_;
  boost::asio::steady_timer timer_;
  Session session_;
  std::weak_ptr<ConnectionOwner> owner_;
  std::array<char, 4096> input_;
  std::string unsent_;
  std::string sending_;
  bool trusted_ = false;
  bool over_ = false;
};

}  // namespace lockstep::control

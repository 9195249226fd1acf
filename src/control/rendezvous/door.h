// Connections that come to a port: the proof of the secret, then messages. Strangers are dropped, counted and logged.
//
//   Connection   one socket around a Session, on an io_context
//   Door         a listening socket and the connections that came through it
//
// What the messages mean is for others to say: RendezvousServer serves the workers of a job, NodeHost the launchers.
#pragma once

#include <utility>  // Boost 1.74's Asio uses std::exchange and does not include this

#include <array>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "control/rendezvous/handshake.h"
#include "control/rendezvous/sockets.h"

namespace lockstep::control {

// How a connection ended.
struct Departure {
  std::string why;        // a phrase: "closed the connection"
  bool in_order = false;  // workers may end like this, too: no sign of a stranger
  Ending ending = Ending::kNone;
  std::uint16_t peer_version = 0;
  bool proven = false;  // the other side had proved the secret
};

// What a connection tells its owner.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;

  // A genuine message; false: it makes no sense, end the connection.
  virtual bool on_message(ConnectionId from, const Message& message) = 0;
  // The connection is over. Called once, from the io_context: never from within a call of the owner.
  virtual void on_end(ConnectionId connection, const Departure& departure) = 0;
};

// One connection: a socket around a Session.
//
// Threads:   those of its io_context, one at a time.
// Blocking:  never.
// Failure:   ends, and tells its owner why.
// Ownership: owns the socket; outstanding operations keep it alive; it does not keep its owner alive.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(boost::asio::io_context& context, ConnectionId id, base::Fd fd, Session session,
             std::weak_ptr<ConnectionOwner> owner);

  // Begins to read. A peer that is not trust()ed within `time_to_prove` is dropped.
  void start(std::chrono::milliseconds time_to_prove);
  void trust();

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
  Departure session_over() const;

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

// Lets at most `most` lines through in every window of time: strangers may connect thousands of times a second, and
// must not fill the log. Pure: the caller brings the clock.
class LogLimiter {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  LogLimiter(int most, std::chrono::milliseconds window) : most_(most), window_(window) {}

  // Nothing if this line is to be dropped. Else how many lines were dropped since the last one.
  std::optional<std::uint64_t> pass(TimePoint now);

 private:
  int most_;
  std::chrono::milliseconds window_;
  TimePoint window_end_{};
  int passed_ = 0;
  std::uint64_t swallowed_ = 0;
};

struct DoorOptions {
  std::string secret;
  std::chrono::milliseconds time_to_prove{5000};
  std::size_t most_unproven =
      256;  // connections that have not proved the secret; the oldest is dropped
};

// Made by std::make_shared, then started.
//
// Threads:   construct, call and destroy where the io_context runs, or while it does not run.
// Blocking:  never.
// Failure:   none thrown. Strangers and full tables are handled inside and logged.
// Ownership: owns the listener and its connections; the io_context must outlive it. Call shut_down() before what the
//            handlers use is destroyed.
class Door : public ConnectionOwner, public std::enable_shared_from_this<Door> {
 public:
  Door(boost::asio::io_context& context, Listener listener, DoorOptions options);

  // A genuine message; false: it makes no sense, and the connection ends. After the first that makes sense the
  // connection is trusted.
  std::function<bool(ConnectionId, const Message&)> when_message;
  std::function<void(ConnectionId)> when_gone;
  // Before a stranger is logged: "10.0.0.7 port 41234", and how its connection ended. True: it needs no log.
  std::function<bool(const std::string& who, const Departure&)> when_stranger;

  void start() { wait_for_guests(); }
  void send(ConnectionId to, const Message& message);

  // Takes in nobody else, and drops those who have not proved the secret.
  void close();
  void shut_down();

  const Address& address() const { return address_; }
  std::uint64_t strangers() const { return strangers_; }
  std::size_t connections() const { return guests_.size(); }

 private:
  struct Guest {
    std::shared_ptr<Connection> connection;
    std::string who;  // "pid 12 of user 1000", "10.0.0.7 port 41234"
  };

  bool on_message(ConnectionId from, const Message& message) override;
  void on_end(ConnectionId id, const Departure& departure) override;

  void wait_for_guests();
  void accept_all();
  int accept_one();
  void admit(base::Fd fd);
  bool drop_oldest_unproven(const char* why);
  void pause_accepting();
  void stranger(const std::string& who, const Departure& departure);

  boost::asio::io_context& context_;
  DoorOptions options_;
  Address address_;
  boost::asio::posix::stream_descriptor listening_;
  std::map<ConnectionId, Guest> guests_;  // by age
  std::map<ConnectionId, Guest*>
      unproven_;  // those of them that have sent nothing that makes sense
  ConnectionId last_id_ = 0;
  std::uint64_t strangers_ = 0;
  LogLimiter limiter_;
};

}  // namespace lockstep::control

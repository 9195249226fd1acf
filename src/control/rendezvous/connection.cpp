#include "control/rendezvous/connection.h"

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>

#include "control/rendezvous/sockets.h"

namespace lockstep::control {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

// Whoever asks for more than this without reading the answers is dropped.
constexpr std::size_t kMostUnsentBytes = 16 * kMostFrameBytes;

}  // namespace

Connection::Connection(asio::io_context& context, ConnectionId id, base::Fd fd, Session session,
                       std::weak_ptr<ConnectionOwner> owner)
    : id_(id),
      socket_(context),
      timer_(context),
      session_(std::move(session)),
      owner_(std::move(owner)) {
  const int family = local_address(fd.get()).family();
  socket_.assign(asio::generic::stream_protocol(family, 0), fd.release());
}

void Connection::start(std::chrono::milliseconds time_to_prove) {
  timer_.expires_after(time_to_prove);
  timer_.async_wait([self = shared_from_this()](error_code error) {
    if (!error && !self->trusted_) self->end({"did not prove the secret in time"});
  });
  read();
}

void Connection::trust() {
  trusted_ = true;
  timer_.cancel();
}

void Connection::send(const Message& message) {
  session_.send(message);
  write();
}

void Connection::end(Departure departure) {
  if (over_) return;
  asio::post(socket_.get_executor(), [owner = owner_, id = id_, departure = std::move(departure)] {
    if (const auto alive = owner.lock()) alive->on_end(id, departure);
  });
  abandon();
}

void Connection::abandon() {
  over_ = true;
  error_code ignored;
  socket_.close(ignored);
  timer_.cancel();
}

void Connection::read() {
  socket_.async_read_some(asio::buffer(input_),
                          [self = shared_from_this()](error_code error, std::size_t count) {
                            if (self->over_) return;
                            if (error) return self->end({"closed the connection", true});
                            self->on_read(count);
                          });
}

void Connection::on_read(std::size_t count) {
  session_.receive(std::string_view(input_.data(), count));
  while (const auto message = session_.next()) {
    const auto owner = owner_.lock();
    if (!owner || over_) return;
    if (!owner->on_message(id_, *message)) return end({"sent a message out of place"});
    if (over_) return;
  }
  write();
  if (over_) return;
  // A session that has ended reads no more; it goes when its refusal is written.
  if (session_.ending() == Ending::kNone) {
    read();
  } else if (sending_.empty()) {
    end({describe(session_.ending())});
  }
}

void Connection::write() {
  unsent_ += session_.take_output();
  if (unsent_.size() > kMostUnsentBytes) return end({"does not read its answers"});
  if (over_ || unsent_.empty() || !sending_.empty()) return;
  sending_ = std::exchange(unsent_, {});
  asio::async_write(socket_, asio::buffer(sending_),
                    [self = shared_from_this()](error_code error, std::size_t) {
                      if (self->over_) return;
                      if (error) return self->end({"closed the connection", true});
                      self->on_written();
                    });
}

void Connection::on_written() {
  sending_.clear();
  write();
  if (sending_.empty() && session_.ending() != Ending::kNone) end({describe(session_.ending())});
}

}  // namespace lockstep::control

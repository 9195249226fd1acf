#include "comm/tcp/tcp_stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/check.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kBuffer = std::size_t{64} << 10;
// A frame of up to so many bytes is copied before it is written: one piece costs the kernel less.
constexpr std::size_t kPieceBytes = std::size_t{8} << 10;
// If at least this much of a frame is left, it is read straight into its memory.
constexpr std::size_t kStraight = std::size_t{16} << 10;
// The most bytes of one read(): the caller holds the link's lock.
constexpr std::size_t kMostRead = std::size_t{1} << 20;

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK;
}

// Bytes that were read, 0 if there are none now, or nothing if the connection has ended.
std::optional<std::size_t> receive(int socket, std::byte* to, std::size_t most) {
  while (true) {
    const ssize_t count = ::recv(socket, to, most, MSG_DONTWAIT);
    if (count > 0) return static_cast<std::size_t>(count);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && would_block()) return 0;
    return std::nullopt;
  }
}

}  // namespace

FrameWriter::FrameWriter(int socket, std::optional<Tagger> tagger)
    : socket_(socket), tagger_(std::move(tagger)), piece_(kPieceBytes) {}

void FrameWriter::put(const TcpFrame& frame, const std::byte* bytes) {
  LOCKSTEP_CHECK(idle(), "one frame after the other");
  const TcpHeader header = encode(frame);
  std::memcpy(head_.data(), header.data(), header.size());
  bytes_ = bytes;
  count_ = frame.bytes;
  if (tagger_) {
    tagger_->add(header);
    tag_ = tagger_->finish();
    std::memcpy(head_.data() + header.size(), tag_.data(), tag_.size());
  }
  if (tagger_ && count_ > 0) {
    tagger_->add({bytes_, count_});
    tag_ = tagger_->finish();
  }
  left_ = whole();
  in_piece_ = left_ <= piece_.size();
  if (in_piece_) make_piece();
  flush();
}

void FrameWriter::make_piece() {
  std::byte* at = piece_.data();
  const auto add = [&](const std::byte* from, std::size_t count) {
    if (count > 0) std::memcpy(at, from, count);
    at += count;
  };
  add(head_.data(), tagger_ ? head_.size() : kTcpHeaderBytes);
  add(bytes_, count_);
  add(tag_.data(), tagger_ && count_ > 0 ? tag_.size() : 0);
}

std::size_t FrameWriter::whole() const {
  if (!tagger_) return kTcpHeaderBytes + count_;
  return head_.size() + count_ + (count_ > 0 ? kTagBytes : 0);
}

bool FrameWriter::flush() {
  bool wrote = false;
  while (left_ > 0 && !closed_) {
    const ssize_t sent = send_some();
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && would_block()) break;
    if (sent < 0) {  // the reader will see the end
      ::shutdown(socket_, SHUT_RDWR);
      closed_ = true;
      left_ = 0;
      break;
    }
    left_ -= static_cast<std::size_t>(sent);
    wrote = true;
  }
  return wrote;
}

ssize_t FrameWriter::send_some() {
  constexpr int kFlags = MSG_NOSIGNAL | MSG_DONTWAIT;
  std::size_t done = whole() - left_;
  if (in_piece_) return ::send(socket_, piece_.data() + done, left_, kFlags);
  std::array<iovec, 3> parts{};
  std::size_t used = 0;
  const auto add = [&](const std::byte* from, std::size_t count) {
    const std::size_t skipped = std::min(done, count);
    done -= skipped;
    if (count > skipped) parts[used++] = {const_cast<std::byte*>(from) + skipped, count - skipped};
  };
  add(head_.data(), tagger_ ? head_.size() : kTcpHeaderBytes);
  add(bytes_, count_);
  add(tag_.data(), tagger_ && count_ > 0 ? tag_.size() : 0);
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = used;
  return ::sendmsg(socket_, &message, kFlags);
}

void FrameWriter::keep() noexcept {
  if (idle() || in_piece_ || bytes_ == kept_.data() || count_ == 0) return;
  try {
    kept_.assign(bytes_, bytes_ + count_);
    bytes_ = kept_.data();
  } catch (const std::bad_alloc&) {  // half a frame is of no use to anybody
    ::shutdown(socket_, SHUT_RDWR);
    closed_ = true;
    left_ = 0;
  }
}

FrameReader::FrameReader(int socket, std::optional<Tagger> tagger)
    : socket_(socket), tagger_(std::move(tagger)), buffer_(kBuffer) {}

FrameReader::Result FrameReader::read(FrameSink& sink) {
  std::size_t taken = 0;
  Result all = Result::kNothing;
  while (taken < kMostRead) {
    const bool straight = part_ == Part::kBytes && held() == 0 && left_ >= kStraight && to_;
    const std::size_t before = straight ? left_ : held();
    const std::size_t room = straight ? left_ : buffer_.size() - held();
    const Result result = straight ? take_bytes_from_socket() : refill();
    if (result == Result::kNothing) break;
    if (result != Result::kSome) return result;
    const std::size_t came = straight ? before - left_ : held() - before;
    const Result parsed = parse(sink);
    if (parsed == Result::kBroken || parsed == Result::kForged) return parsed;
    all = Result::kSome;
    if (came < room) break;  // the socket was empty
    taken += came;
  }
  return all;
}

FrameReader::Result FrameReader::refill() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, held());
    end_ -= begin_;
    begin_ = 0;
  }
  const auto count = receive(socket_, buffer_.data() + end_, buffer_.size() - end_);
  if (!count) return Result::kClosed;
  end_ += *count;
  return *count == 0 ? Result::kNothing : Result::kSome;
}

FrameReader::Result FrameReader::take_bytes_from_socket() {
  const auto count = receive(socket_, to_, left_);
  if (!count) return Result::kClosed;
  if (*count == 0) return Result::kNothing;
  if (tagger_) tagger_->add({to_, *count});
  to_ += *count;
  left_ -= *count;
  return Result::kSome;
}

// Everything that has come.
FrameReader::Result FrameReader::parse(FrameSink& sink) {
  while (true) {
    if (const auto result = parse_part(sink)) return *result;
  }
}

// One part of a frame; nothing: the next part may be there, too.
std::optional<FrameReader::Result> FrameReader::parse_part(FrameSink& sink) {
  switch (part_) {
    case Part::kHeader: {
      if (held() < kTcpHeaderBytes + (tagger_ ? kTagBytes : 0)) return Result::kSome;
      const std::span<const std::byte, kTcpHeaderBytes> header(buffer_.data() + begin_,
                                                               kTcpHeaderBytes);
      if (tagger_) tagger_->add(header);
      begin_ += kTcpHeaderBytes;
      if (!take_tag()) return Result::kForged;
      const auto frame = decode_tcp_header(header);
      if (!frame) return Result::kBroken;
      frame_ = *frame;
      left_ = frame_.bytes;
      to_ = sink.begin(frame_);
      part_ = Part::kBytes;
      return std::nullopt;
    }
    case Part::kBytes:
      take_bytes(std::min(held(), left_));
      if (left_ > 0) return Result::kSome;
      part_ = Part::kTag;
      return std::nullopt;
    case Part::kTag:
      if (tagger_ && frame_.bytes > 0) {
        if (held() < kTagBytes) return Result::kSome;
        if (!take_tag()) return Result::kForged;
      }
      part_ = Part::kHeader;
      sink.end(frame_);
      return std::nullopt;
  }
  return Result::kBroken;
}

// True if it is that of what was added.
bool FrameReader::take_tag() {
  if (!tagger_) return true;
  Tag tag;
  std::memcpy(tag.data(), buffer_.data() + begin_, tag.size());
  begin_ += tag.size();
  return equal(tag, tagger_->finish());
}

void FrameReader::take_bytes(std::size_t count) {
  const std::byte* const from = buffer_.data() + begin_;
  if (tagger_) tagger_->add({from, count});
  if (to_ != nullptr && count > 0) {
    std::memcpy(to_, from, count);
    to_ += count;
  }
  begin_ += count;
  left_ -= count;
}

}  // namespace lockstep::comm

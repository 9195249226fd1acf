#include "comm/tcp/tcp_peer.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

namespace lockstep::comm {
namespace {

// The most bytes of one write(): the caller holds the link's lock.
constexpr std::size_t kMostWrite = std::size_t{1} << 20;

std::optional<Tagger> tagger_of(bool tagged, const std::string& key) {
  return tagged ? std::optional<Tagger>(key) : std::nullopt;
}

}  // namespace

TcpPeer::TcpPeer(int rank, TcpWorld::Peer formed)
    : FramePeer(rank),
      address_(std::move(formed.address)),
      elsewhere_(formed.elsewhere),
      socket_(std::move(formed.connection.socket)),
      in_(socket_.get(), tagger_of(formed.tagged, formed.connection.key_in)),
      out_(socket_.get(), tagger_of(formed.tagged, formed.connection.key_out)) {
  posts().sends.short_bytes = elsewhere_ ? kTcpShortBytesBetweenHosts : kTcpShortBytes;
}

FrameReader::Result TcpPeer::read() {
  const auto result = in_.read(*this);
  if (elsewhere_ && result == FrameReader::Result::kSome) life_.heard = Clock::now();
  if (result == FrameReader::Result::kClosed) life_.closed = true;
  return result;
}

std::byte* TcpPeer::begin(const TcpFrame& frame) {
  switch (frame.kind) {
    case TcpFrame::Kind::kMessage:
      return begin_message(frame);
    case TcpFrame::Kind::kData:
      return begin_data(frame);
    case TcpFrame::Kind::kNotice:
      reading_.notice.resize(frame.bytes);
      return reinterpret_cast<std::byte*>(reading_.notice.data());
    default:
      return nullptr;
  }
}

std::byte* TcpPeer::begin_message(const TcpFrame& frame) {
  reading_.post = posts().receives.take_wanted(frame.slot);
  if (reading_.post && frame.total <= reading_.post->bytes) return reading_.post->data;
  reading_.arrival = {frame.number, frame.total, false, {}};
  reading_.arrival.bytes.resize(frame.bytes);
  return reading_.arrival.bytes.data();
}

// A message whose receive was withdrawn goes nowhere.
std::byte* TcpPeer::begin_data(const TcpFrame& frame) {
  const auto found = posts().receives.granted.find(frame.number);
  if (found == posts().receives.granted.end()) return nullptr;
  Post* const post = found->second;
  if (frame.bytes > post->total - post->moved) {
    throw Mismatch(fmt::format("a message of rank {} is longer than it says: it is broken", rank()),
                   {rank()});
  }
  reading_.post = post;
  return post->data + post->moved;
}

void TcpPeer::end(const TcpFrame& frame) {
  switch (frame.kind) {
    case TcpFrame::Kind::kMessage:
      end_message(frame);
      break;
    case TcpFrame::Kind::kAsk:
      take_ask(frame.slot, frame.number, frame.total);
      break;
    case TcpFrame::Kind::kGrant:
      posts().sends.granted(frame.number);
      break;
    case TcpFrame::Kind::kData:
      end_data(frame);
      break;
    case TcpFrame::Kind::kNotice:
      take_notice(reading_.notice);
      break;
    case TcpFrame::Kind::kReceipt:
      news_.receipt_came = true;
      break;
    case TcpFrame::Kind::kBeat:
      break;
  }
  reading_ = {};
}

// A receive may have been posted while the bytes came.
void TcpPeer::end_message(const TcpFrame& frame) {
  if (reading_.dropped) return;
  Post* const post = reading_.post ? reading_.post : posts().receives.take_wanted(frame.slot);
  if (!post) {
    posts().receives.arrived.emplace(frame.slot, std::move(reading_.arrival));
  } else if (reading_.post && frame.total <= post->bytes) {
    post->total = frame.total;
    post->state = PostState::kDone;
  } else {
    posts().match(*post, std::move(reading_.arrival));
  }
}

void TcpPeer::end_data(const TcpFrame& frame) {
  if (!reading_.post) return;
  Post& post = *reading_.post;
  post.moved += frame.bytes;
  if (post.moved < post.total) return;
  post.state = PostState::kDone;
  posts().receives.granted.erase(frame.number);
}

bool TcpPeer::write() {
  bool wrote = false;
  std::size_t begun = 0;  // bytes
  while (!out_.closed()) {
    if (!out_.idle()) wrote = out_.flush() || wrote;
    if (!out_.idle()) break;
    finish_frame();
    if (begun >= kMostWrite || !put_next()) break;
    begun += kTcpHeaderBytes + (writing_.post ? writing_.bytes : 0);
    wrote = true;
  }
  if (elsewhere_ && wrote) life_.wrote = Clock::now();
  return wrote;
}

bool TcpPeer::wants_to_write() const {
  if (out_.closed()) return false;
  return !out_.idle() || news_.receipt_due || !news_.notice.empty() || life_.beat_due ||
         !posts().receives.grants.empty() || !posts().sends.to_begin.empty() ||
         !posts().sends.streaming.empty();
}

// What the writer had is on its way.
void TcpPeer::finish_frame() {
  Post* const post = std::exchange(writing_.post, nullptr);
  if (!post || out_.closed()) return;
  post->moved += writing_.bytes;
  if (post->moved < post->bytes) return;
  post->state = PostState::kDone;
  if (!posts().sends.streaming.empty() && posts().sends.streaming.front() == post)
    posts().sends.streaming.pop_front();
}

// True if there was something to write.
bool TcpPeer::put_next() {
  const auto put = [&](TcpFrame::Kind kind) {
    out_.put({kind, 0, 0, 0, 0}, nullptr);
    return true;
  };
  if (std::exchange(news_.receipt_due, false)) return put(TcpFrame::Kind::kReceipt);
  if (!news_.notice.empty()) {
    out_.put({TcpFrame::Kind::kNotice, static_cast<std::uint32_t>(news_.notice.size()), 0, 0, 0},
             reinterpret_cast<const std::byte*>(news_.notice.data()));
    out_.keep();
    news_.notice.clear();
    return true;
  }
  if (!posts().receives.grants.empty()) {
    const Grant grant = posts().receives.grants.front();
    posts().receives.grants.pop_front();
    out_.put({TcpFrame::Kind::kGrant, 0, grant.slot, grant.number, grant.total}, nullptr);
    return true;
  }
  if (!posts().sends.to_begin.empty()) {
    begin_send();
    return true;
  }
  if (!posts().sends.streaming.empty()) {
    put_data(*posts().sends.streaming.front());
    return true;
  }
  return std::exchange(life_.beat_due, false) && put(TcpFrame::Kind::kBeat);
}

// A post leaves its queue when it is safe elsewhere. The writer has it only after put(), which may
// throw.
void TcpPeer::begin_send() {
  Post* const post = posts().sends.to_begin.front();
  if (post->asks) {
    posts().sends.asked[post->number] = post;
    posts().sends.to_begin.pop_front();
    out_.put({TcpFrame::Kind::kAsk, 0, post->slot, post->number, post->bytes}, nullptr);
    return;
  }
  out_.put({TcpFrame::Kind::kMessage, static_cast<std::uint32_t>(post->bytes), post->slot,
            post->number, post->bytes},
           post->data);
  writing_ = {post, post->bytes};
  posts().sends.to_begin.pop_front();
}

void TcpPeer::put_data(Post& post) {
  const std::size_t part = std::min(post.bytes - post.moved, kMostData);
  out_.put(
      {TcpFrame::Kind::kData, static_cast<std::uint32_t>(part), post.slot, post.number, post.bytes},
      post.data + post.moved);
  writing_ = {&post, part};
}

void TcpPeer::retire(Post& post) {
  if (writing_.post == &post) {
    out_.keep();
    writing_.post = nullptr;
  }
  if (reading_.post == &post) {
    in_.drop();
    reading_.post = nullptr;
    reading_.dropped = true;
  }
  posts().retire(post);
}

void TcpPeer::fail_posts(const Failure& why) {
  for (Post* const post : {std::exchange(writing_.post, nullptr), reading_.post}) {
    if (post == nullptr) continue;
    post->fail(why);
    retire(*post);
  }
  out_.keep();
  posts().fail(why);
}

void TcpPeer::shut_down() {
  ::shutdown(socket_.get(), SHUT_RDWR);
  life_.closed = true;
}

}  // namespace lockstep::comm

#include "control/rendezvous/message.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"

namespace lockstep::control {
namespace {

using base::ByteReader;
using base::ByteWriter;

constexpr std::string_view kMagic = "LKST";

enum class HandshakeKind : std::uint8_t { kChallenge = 'C', kProof = 'P', kRefusal = 'R' };

std::uint8_t first_byte(HandshakeKind kind) {
  return static_cast<std::uint8_t>(kind);
}

// For texts for people: they are cut, not refused.
std::string_view cut(std::string_view text) {
  return text.substr(0, kMostTextBytes);
}

void write_ranks(ByteWriter& out, const std::vector<int>& ranks) {
  const std::size_t count = std::min(ranks.size(), kMostRanks);
  out.put(static_cast<std::uint32_t>(count));
  for (std::size_t i = 0; i < count; ++i) out.put(static_cast<std::int32_t>(ranks[i]));
}

void write(ByteWriter& out, const Join& join) {
  out.put(join.id).put(join.rank).put(join.size).put(join.wait_ms).put(join.timeout_ms);
  out.put_text(cut(join.build)).put_text(cut(join.engine)).put_text(cut(join.host)).put(join.pid);
  out.put(static_cast<std::uint8_t>(join.in_batch));
}
void write(ByteWriter& out, const Put& put) {
  LOCKSTEP_CHECK(put.key.size() <= kMostKeyBytes && put.value.size() <= kMostValueBytes,
                 "the client checks the length of keys and values");
  out.put(put.id).put_text(put.key).put_text(put.value);
}
void write(ByteWriter& out, const Get& get) {
  LOCKSTEP_CHECK(get.key.size() <= kMostKeyBytes, "the client checks the length of keys");
  out.put(get.id).put(get.wait_ms).put_text(get.key);
}
void write(ByteWriter& out, const Done& done) {
  out.put(done.id).put(done.wait_ms);
}
void write(ByteWriter& out, const GiveUp& give_up) {
  out.put_text(cut(give_up.why));
}
void write(ByteWriter& out, const Welcome& welcome) {
  out.put(welcome.id).put(welcome.generation);
  out.put_text(cut(welcome.name)).put_text(cut(welcome.salt)).put(welcome.rank);
  write_ranks(out, welcome.places);
  out.put(welcome.survivors).put(static_cast<std::uint8_t>(welcome.restarted));
}
void write(ByteWriter& out, const Stored& stored) {
  out.put(stored.id);
}
void write(ByteWriter& out, const Value& value) {
  out.put(value.id).put_text(value.value);
}
void write(ByteWriter& out, const Finished& finished) {
  out.put(finished.id);
}
void write(ByteWriter& out, const Failed& failed) {
  out.put(failed.id).put(static_cast<std::uint8_t>(failed.kind)).put_text(cut(failed.message));
  write_ranks(out, failed.ranks);
}
void write(ByteWriter&, const Closing&) {}

std::uint32_t count_of(std::size_t size, std::size_t most) {
  LOCKSTEP_CHECK(size <= most, "the launcher checks how many there are");
  return static_cast<std::uint32_t>(size);
}
void write_words(ByteWriter& out, const std::vector<std::string>& words) {
  out.put(count_of(words.size(), kMostWords));
  for (const auto& word : words) out.put_text(word);
}
void write(ByteWriter& out, const NodeJoin& join) {
  out.put(join.node).put(join.nodes).put(join.workers);
  out.put_text(cut(join.build)).put_text(cut(join.job)).put_text(cut(join.host)).put(join.pid);
  out.put_text(cut(join.problem)).put(join.code).put_text(cut(join.faults));
}
void write(ByteWriter& out, const NodeStart& start) {
  out.put_text(start.name).put_text(start.rendezvous);
  out.put_text(start.master).put(start.master_port);
  out.put(count_of(start.shares.size(), kMostNodes));
  for (const auto& share : start.shares) out.put_text(cut(share.host)).put(share.workers);
  write_words(out, start.words);
  write_words(out, start.variables);
}
void write(ByteWriter& out, const NodeEvent& event) {
  out.put(static_cast<std::uint8_t>(event.kind)).put(event.keeper_kind).put(event.rank);
  out.put(event.pid).put(event.value);
}
void write(ByteWriter& out, const NodeOrders& orders) {
  const auto list = [&](const std::vector<std::int32_t>& numbers) {
    out.put(count_of(numbers.size(), kMostWords));
    for (const auto number : numbers) out.put(number);
  };
  list(orders.signals);
  out.put(static_cast<std::uint8_t>(orders.release));
  list(orders.start);
  list(orders.kill);
  out.put(orders.newcomers);
}
void write(ByteWriter& out, const NodeVerdict& verdict) {
  out.put(verdict.code).put(verdict.cause).put(static_cast<std::uint8_t>(verdict.cut_short));
  out.put(verdict.overtime).put_text(cut(verdict.what)).put(verdict.speaker);
  out.put(static_cast<std::uint8_t>(verdict.witness));
}
void write(ByteWriter&, const Beat&) {}

std::string text(ByteReader& in, std::size_t most = kMostTextBytes) {
  return std::string(in.get_text(most));
}

std::vector<int> ranks(ByteReader& in) {
  std::vector<int> all;
  const auto count = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && in.ok() && all.size() < kMostRanks; ++i)
    all.push_back(in.get<std::int32_t>());
  return all;
}

void read(ByteReader& in, Join& join) {
  join.id = in.get<std::uint32_t>();
  join.rank = in.get<std::uint32_t>();
  join.size = in.get<std::uint32_t>();
  join.wait_ms = in.get<std::uint32_t>();
  join.timeout_ms = in.get<std::uint32_t>();
  join.build = text(in);
  join.engine = text(in);
  join.host = text(in);
  join.pid = in.get<std::uint32_t>();
  join.in_batch = in.get<std::uint8_t>() != 0;
}
void read(ByteReader& in, Put& put) {
  put.id = in.get<std::uint32_t>();
  put.key = text(in, kMostKeyBytes);
  put.value = text(in, kMostValueBytes);
}
void read(ByteReader& in, Get& get) {
  get.id = in.get<std::uint32_t>();
  get.wait_ms = in.get<std::uint32_t>();
  get.key = text(in, kMostKeyBytes);
}
void read(ByteReader& in, Done& done) {
  done.id = in.get<std::uint32_t>();
  done.wait_ms = in.get<std::uint32_t>();
}
void read(ByteReader& in, GiveUp& give_up) {
  give_up.why = text(in);
}
void read(ByteReader& in, Welcome& welcome) {
  welcome.id = in.get<std::uint32_t>();
  welcome.generation = in.get<std::uint64_t>();
  welcome.name = text(in);
  welcome.salt = text(in);
  welcome.rank = in.get<std::uint32_t>();
  welcome.places = ranks(in);
  welcome.survivors = in.get<std::uint32_t>();
  welcome.restarted = in.get<std::uint8_t>() != 0;
}
void read(ByteReader& in, Stored& stored) {
  stored.id = in.get<std::uint32_t>();
}
void read(ByteReader& in, Value& value) {
  value.id = in.get<std::uint32_t>();
  value.value = text(in, kMostValueBytes);
}
void read(ByteReader& in, Finished& finished) {
  finished.id = in.get<std::uint32_t>();
}
void read(ByteReader& in, Failed& failed) {
  failed.id = in.get<std::uint32_t>();
  // A newer build may send a kind that this one does not know. It is still a failure.
  const auto kind = in.get<std::uint8_t>();
  failed.kind = kind >= 1 && kind <= 5 ? static_cast<ErrorKind>(kind) : ErrorKind::kMismatch;
  failed.message = text(in);
  failed.ranks = ranks(in);
}
void read(ByteReader&, Closing&) {}

// Calls `take` for each of the items that follow, at most `most`.
template <typename Take>
void read_each(ByteReader& in, std::size_t most, const Take& take) {
  const auto count = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && in.ok(); ++i) {
    if (i == most) in.get_raw(~std::size_t{0});  // more bytes than there are: it is no message
    if (in.ok()) take();
  }
}
void read(ByteReader& in, NodeJoin& join) {
  join.node = in.get<std::uint32_t>();
  join.nodes = in.get<std::uint32_t>();
  join.workers = in.get<std::uint32_t>();
  join.build = text(in);
  join.job = text(in);
  join.host = text(in);
  join.pid = in.get<std::uint32_t>();
  join.problem = text(in);
  join.code = in.get<std::int32_t>();
  join.faults = text(in);
}
void read(ByteReader& in, NodeStart& start) {
  start.name = text(in);
  start.rendezvous = text(in);
  start.master = text(in);
  start.master_port = in.get<std::uint32_t>();
  read_each(in, kMostNodes, [&] {
    NodeShare share{text(in), 0};
    share.workers = in.get<std::uint32_t>();
    start.shares.push_back(std::move(share));
  });
  read_each(in, kMostWords, [&] { start.words.push_back(text(in, kMostValueBytes)); });
  read_each(in, kMostWords, [&] { start.variables.push_back(text(in, kMostValueBytes)); });
}
void read(ByteReader& in, NodeEvent& event) {
  event.kind = static_cast<NodeEvent::Kind>(in.get<std::uint8_t>());
  event.keeper_kind = in.get<std::int32_t>();
  event.rank = in.get<std::int32_t>();
  event.pid = in.get<std::int32_t>();
  event.value = in.get<std::int32_t>();
}
void read(ByteReader& in, NodeOrders& orders) {
  const auto list = [&](std::vector<std::int32_t>& numbers) {
    read_each(in, kMostWords, [&] { numbers.push_back(in.get<std::int32_t>()); });
  };
  list(orders.signals);
  orders.release = in.get<std::uint8_t>() != 0;
  list(orders.start);
  list(orders.kill);
  orders.newcomers = in.get<std::int32_t>();
}
void read(ByteReader& in, NodeVerdict& verdict) {
  verdict.code = in.get<std::int32_t>();
  verdict.cause = in.get<std::uint8_t>();
  verdict.cut_short = in.get<std::uint8_t>() != 0;
  verdict.overtime = in.get<std::uint32_t>();
  verdict.what = text(in);
  verdict.speaker = in.get<std::int32_t>();
  verdict.witness = in.get<std::uint8_t>() != 0;
}
void read(ByteReader&, Beat&) {}

// The kind on the wire is the index in the variant Message. So within a protocol version new messages are added at its
// end.
template <std::size_t kIndex = 0>
std::optional<Message> decode_kind(std::size_t kind, ByteReader& in) {
  if constexpr (kIndex == std::variant_size_v<Message>) {
    return std::nullopt;
  } else {
    if (kind != kIndex) return decode_kind<kIndex + 1>(kind, in);
    std::variant_alternative_t<kIndex, Message> message;
    read(in, message);
    if (!in.done()) return std::nullopt;
    return Message(std::move(message));
  }
}

}  // namespace

std::string encode(const Hello& hello) {
  return ByteWriter().put_raw(kMagic).put(hello.version).put_raw(hello.nonce).take();
}
std::string encode(const Challenge& challenge) {
  return ByteWriter()
      .put(first_byte(HandshakeKind::kChallenge))
      .put(challenge.version)
      .put_raw(challenge.nonce)
      .take();
}
std::string encode(const Proof& proof) {
  return ByteWriter().put(first_byte(HandshakeKind::kProof)).put_raw(proof.digest).take();
}
std::string encode(const Refusal& refusal) {
  return ByteWriter()
      .put(first_byte(HandshakeKind::kRefusal))
      .put(static_cast<std::uint8_t>(refusal.reason))
      .put(refusal.version)
      .take();
}

std::optional<Hello> decode_hello(std::string_view bytes) {
  ByteReader in(bytes);
  const bool ours = in.get_raw(kMagic.size()) == kMagic;
  Hello hello;
  hello.version = in.get<std::uint16_t>();
  hello.nonce = in.get_raw(kNonceBytes);
  if (!ours || !in.done()) return std::nullopt;
  return hello;
}
std::optional<Challenge> decode_challenge(std::string_view bytes) {
  ByteReader in(bytes);
  const bool ours = in.get<std::uint8_t>() == first_byte(HandshakeKind::kChallenge);
  Challenge challenge;
  challenge.version = in.get<std::uint16_t>();
  challenge.nonce = in.get_raw(kNonceBytes);
  if (!ours || !in.done()) return std::nullopt;
  return challenge;
}
std::optional<Proof> decode_proof(std::string_view bytes) {
  ByteReader in(bytes);
  const bool ours = in.get<std::uint8_t>() == first_byte(HandshakeKind::kProof);
  Proof proof{std::string(in.get_raw(kProofBytes))};
  if (!ours || !in.done()) return std::nullopt;
  return proof;
}
std::optional<Refusal> decode_refusal(std::string_view bytes) {
  ByteReader in(bytes);
  const bool ours = in.get<std::uint8_t>() == first_byte(HandshakeKind::kRefusal);
  const auto reason = in.get<std::uint8_t>();
  const auto version = in.get<std::uint16_t>();
  if (!ours || !in.done() || reason < 1 || reason > 3) return std::nullopt;
  return Refusal{static_cast<RefusalReason>(reason), version};
}

std::optional<std::size_t> handshake_reply_bytes(char first) {
  switch (static_cast<HandshakeKind>(first)) {
    case HandshakeKind::kChallenge:
      return kChallengeBytes;
    case HandshakeKind::kProof:
      return kProofMessageBytes;
    case HandshakeKind::kRefusal:
      return kRefusalBytes;
  }
  return std::nullopt;
}

std::string encode(const Message& message) {
  ByteWriter out;
  out.put(static_cast<std::uint8_t>(message.index()));
  std::visit([&out](const auto& one) { write(out, one); }, message);
  return out.take();
}

std::optional<Message> decode_message(std::string_view bytes) {
  ByteReader in(bytes);
  const std::size_t kind = in.get<std::uint8_t>();
  if (!in.ok()) return std::nullopt;
  return decode_kind(kind, in);
}

}  // namespace lockstep::control

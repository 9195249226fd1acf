// Writes first inputs for the fuzzers whose inputs are bytes of our own protocols, so that they
// never fall behind the code: seeds DIRECTORY makes DIRECTORY/<fuzzer>/<number>.
#include "seeds.h"

#include <cstdio>
#include <fstream>

#include "base/bytes.h"
#include "base/pair_proof.h"
#include "comm/arena/arena_session.h"
#include "comm/arena/offer.h"
#include "comm/core/failure.h"
#include "comm/core/header.h"
#include "comm/tcp/forming.h"
#include "comm/tcp/tcp_frame.h"
#include "control/rendezvous/frame.h"
#include "control/rendezvous/handshake.h"
#include "control/rendezvous/message.h"

namespace {

using namespace lockstep::control;
using lockstep::fuzz::Seeds;
using lockstep::fuzz::write;

std::vector<Message> messages() {
  return {
      Join{1, 0, 3, 900, 1000, "0.1.0", "tcp", "node", 7},
      Join{1, 1, 3, 900, 1000, "0.1.0", "tcp", "node", 8},
      Join{1, 2, 3, 900, 1000, "0.1.0", "tcp", "node", 9},
      Put{2, "key", "value"},
      Get{3, 500, "key"},
      Done{4, 100},
      GiveUp{"no route"},
      Welcome{5, 7, "name", "salt"},
      Stored{6},
      Value{7, "value"},
      Finished{8},
      Failed{9, lockstep::ErrorKind::kMismatch, "disagree", {1, 2}},
      Closing{},
      NodeJoin{1, 2, 4, "0.1.0", "run train", "node", 7, "", 0},
      NodeStart{"name", "tcp:10.0.0.1:4711", "10.0.0.1", 29500, {{"a", 4}}, {"--steps"}, {"A=1"}},
      NodeEvent{NodeEvent::Kind::kLoss, 0, 5, 0, 2},
      NodeOrders{{15, 18}, true, {1, 2}, {0}, 3},
      NodeVerdict{7, 2, true, 0, "rank 5 failed", 5, false},
      Beat{}};
}

Seeds message_seeds() {
  Seeds seeds;
  for (const Message& message : messages()) seeds.push_back(encode(message));
  const std::string nonce(kNonceBytes, 'n');
  seeds.push_back(encode(Hello{kProtocolVersion, nonce}));
  seeds.push_back(encode(Challenge{kProtocolVersion, nonce}));
  seeds.push_back(encode(Proof{nonce}));
  seeds.push_back(encode(Refusal{RefusalReason::kSecret, kProtocolVersion}));
  return seeds;
}

Seeds frame_seeds() {
  const std::string frame = FrameSealer("another key", Direction::kToServer).seal("payload");
  return {std::string("\x03\x05\x01", 3) + "one\xfftwo\xff\xff",
          std::string("\x00\x00\x00", 3) + frame};
}

// To either side, before and after a genuine beginning.
Seeds handshake_seeds() {
  Seeds seeds;
  for (const std::string& bytes : message_seeds()) {
    for (char rounds = 0; rounds < 4; ++rounds) {
      for (char side = 0; side < 2; ++side) seeds.push_back(std::string{side, 63, rounds} + bytes);
    }
  }
  return seeds;
}

std::string event(std::uint8_t head, const Message& message) {
  const std::string bytes = encode(message);
  lockstep::base::ByteWriter out;
  out.put(head).put(static_cast<std::uint8_t>(bytes.size())).put_raw(bytes);
  return out.take();
}

Seeds roster_seeds() {
  std::string all;
  std::uint8_t connection = 0;
  for (const Message& message : messages()) all += event(connection++ % 3, message);
  std::string done;
  for (std::uint8_t rank = 0; rank < 3; ++rank) done += event(rank, messages()[rank]);
  for (std::uint8_t rank = 0; rank < 3; ++rank) done += event(rank, Done{2, 1000});
  return {all, all + '\xd0' + '\xef' + '\xff' + all, done + '\xd0' + '\xd1' + done};
}

Seeds wire_seeds() {
  namespace comm = lockstep::comm;
  Seeds seeds;
  for (int kind = 1; kind <= 7; ++kind) {
    comm::Header header;
    header.kind = static_cast<comm::Kind>(kind);
    header.count = 1000;
    const auto bytes = comm::encode_header(header);
    seeds.emplace_back(bytes.begin(), bytes.end());
  }
  seeds.push_back(comm::encode_notice({lockstep::ErrorKind::kTimeout, {1, 2}, "late"}));
  return seeds;
}

// A offer, and to either end of a session the packets that it may get.
Seeds arena_seeds() {
  namespace comm = lockstep::comm;
  const comm::Party lower{"the secret", "world", "arena", 0, 3};
  const comm::Party higher{"the secret", "world", "arena", 2, 3};
  comm::Session calling = comm::Session::to(higher, 0);
  comm::Session listening = comm::Session::from_anyone(lower);
  Seeds seeds{comm::encode(comm::ArenaOffer{"host", "socket", 4096, 4711, "pid:[1]"})};
  std::string packet = calling.hello();
  bool to_listener = true;
  while (true) {
    for (char heard = 0; heard < 3; ++heard) {
      for (char end = 0; end < 2; ++end) {
        seeds.push_back(std::string{end, heard, static_cast<char>(packet.size())} + packet);
      }
    }
    const auto reply = (to_listener ? listening : calling).receive(packet);
    if (!reply) return seeds;
    packet = reply->packet;
    to_listener = !to_listener;
  }
}

// Each with the byte that chooses what it is taken for.
Seeds tcp_seeds() {
  namespace comm = lockstep::comm;
  const lockstep::base::PairWorld world{"name", "secret", 1, 3};
  lockstep::base::PairProof caller = lockstep::base::PairProof::caller({"name", "secret", 2, 3}, 1);
  lockstep::base::PairProof listener = lockstep::base::PairProof::listener(world);
  const std::string hello = caller.start();
  const std::string answer = listener.receive(hello);
  Seeds seeds{'\0' + comm::encode(comm::TcpPlace{{"10.0.0.1", 4711}, "a host"}), '\1' + answer,
              '\2' + hello + caller.receive(answer)};
  std::string stream;
  using Kind = comm::TcpFrame::Kind;
  for (const comm::TcpFrame& frame :
       {comm::TcpFrame{Kind::kMessage, 5, 1, 2, 5}, comm::TcpFrame{Kind::kAsk, 0, 1, 3, 100},
        comm::TcpFrame{Kind::kData, 7, 1, 3, 100}, comm::TcpFrame{Kind::kBeat, 0, 0, 0, 0}}) {
    const comm::TcpHeader header = comm::encode(frame);
    stream.append(reinterpret_cast<const char*>(header.data()), header.size());
    stream.append(frame.bytes, 'x');
  }
  seeds.push_back('\3' + stream);
  seeds.push_back('\4' + stream);
  return seeds;
}

}  // namespace

void lockstep::fuzz::write(const std::filesystem::path& directory, const Seeds& seeds) {
  std::filesystem::create_directories(directory);
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    std::ofstream(directory / std::to_string(i), std::ios::binary) << seeds[i];
  }
}

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: fuzz_seeds DIRECTORY\n");
    return 2;
  }
  const std::filesystem::path root = argv[1];
  write(root / "fuzz_rendezvous_message", message_seeds());
  write(root / "fuzz_rendezvous_frame", frame_seeds());
  write(root / "fuzz_rendezvous_handshake", handshake_seeds());
  write(root / "fuzz_rendezvous_roster", roster_seeds());
  write(root / "fuzz_wire", wire_seeds());
  lockstep::fuzz::write_format_seeds(root);
  write(root / "fuzz_arena_session", arena_seeds());
  write(root / "fuzz_tcp", tcp_seeds());
  return 0;
}

#include "torch/step/letters.h"

#include <lockstep/errors.h>

#include <type_traits>
#include <utility>

namespace lockstep::steps {
namespace {

static_assert(std::is_trivially_copyable_v<Letter>, "a letter is sent as it is");

constexpr std::chrono::seconds kLastWait{1};

Buffer bytes_of(void* data, std::size_t bytes) {
  return {data, bytes, DType::kUInt8};
}

}  // namespace

Letterbox::Letterbox(Comm& comm, Size size)
    : comm_(comm), size_(std::move(size)), begun_(static_cast<std::size_t>(comm.size())) {}

// Memory that is being sent cannot be given back. Only a round that has failed leaves some.
Letterbox::~Letterbox() {
  for (const Sent& sent : sent_) {
    for (const Work* gone : {&sent.letter_gone, &sent.bytes_gone}) {
      try {
        gone->wait(Deadline::after(kLastWait));
      } catch (const Error&) {
        // The Comm is dead, and the memory is free.
      }
    }
  }
}

void Letterbox::send(int to, const Letter& letter, Bytes bytes) {
  forget_gone();
  Sent& sent = sent_.emplace_back(Sent{std::make_unique<Letter>(letter), std::move(bytes), {}, {}});
  sent.letter_gone = comm_.send(to, bytes_of(sent.letter.get(), sizeof(Letter)));
  if (!sent.bytes.empty())
    sent.bytes_gone = comm_.send(to, bytes_of(sent.bytes.data(), sent.bytes.size()));
}

// What cannot be sent ends the Comm, and the next call throws.
void Letterbox::forget_gone() {
  while (!sent_.empty() && sent_.front().letter_gone.done() && sent_.front().bytes_gone.done())
    sent_.pop_front();
}

std::optional<Letterbox::Received> Letterbox::receive() {
  forget_gone();
  for (int looked = 0; looked < comm_.size(); ++looked) {
    const int peer = std::exchange(next_, (next_ + 1) % comm_.size());
    if (peer == comm_.rank()) continue;
    if (auto received = receive_from(peer)) return received;
  }
  return std::nullopt;
}

std::optional<Letterbox::Received> Letterbox::receive_from(int peer) {
  auto& begun = begun_[static_cast<std::size_t>(peer)];
  if (!begun) {
    Received received{peer, {}, {}};
    if (!comm_.try_recv(peer, bytes_of(&received.letter, sizeof(Letter)))) return std::nullopt;
    received.bytes.resize(size_(peer, received.letter));
    begun = std::move(received);
  }
  if (!begun->bytes.empty() &&
      !comm_.try_recv(peer, bytes_of(begun->bytes.data(), begun->bytes.size())))
    return std::nullopt;
  return std::exchange(begun, std::nullopt);
}

void Letterbox::flush() {
  for (; !sent_.empty(); sent_.pop_front()) {
    sent_.front().letter_gone.wait();
    sent_.front().bytes_gone.wait();
  }
}

}  // namespace lockstep::steps

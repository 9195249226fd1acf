// What workers of an asynchronous round send each other if they share no memory (sent_round.cpp).
#pragma once

#include <lockstep/comm.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "plan/clerk.h"

namespace lockstep::steps {

struct Letter {
  enum class Kind : std::uint8_t {
    kAsk,       // to the clerk: this worker wants a task
    kTake,      // to the clerk: it wants the weights for its task
    kDone,      // to the clerk: its gradient is on its way to the owners
    kAnswer,    // from the clerk: a task, or that none is left
    kLog,       // from the clerk: an entry of the log
    kGradient,  // to an owner: its part of a gradient (Cut)
    kWeights,   // from an owner: its slice
  };
  Kind kind = Kind::kAsk;
  std::int64_t task = 0;
  plan::TaskLoss loss = {};          // kDone
  double factor = 1;                 // kGradient: what an update multiplies it by
  plan::Clerk::Answer answer = {};   // kAnswer
  plan::Clerk::LogEntry entry = {};  // kLog
};

// Letters of one worker, over a channel of its own.
//
// Threads:   one caller at a time.
// Blocking:  flush(), until all letters are sent; at most the Comm's timeout.
// Failure:   PeerLost, Timeout, Mismatch, after which the Comm is dead.
// Ownership: borrows the Comm; keeps what it sends until that has gone.
class Letterbox {
 public:
  using Bytes = std::vector<std::byte>;
  // How many bytes come with a letter from this worker.
  using Size = std::function<std::size_t(int from, const Letter& letter)>;
  Letterbox(Comm& comm, Size size);
  Letterbox(const Letterbox&) = delete;
  Letterbox& operator=(const Letterbox&) = delete;
  ~Letterbox();  // ends the Comm if something is still on its way

  void send(int to, const Letter& letter, Bytes bytes = {});
  struct Received {
    int from = 0;
    Letter letter;
    Bytes bytes;
  };
  // The next letter that has come whole; letters of one worker come in their order. Nothing: none has.
  std::optional<Received> receive();
  void flush();

 private:
  struct Sent {
    std::unique_ptr<Letter> letter;
    Bytes bytes;
    Work letter_gone, bytes_gone;
  };
  void forget_gone();
  std::optional<Received> receive_from(int peer);

  Comm& comm_;
  Size size_;
  std::deque<Sent> sent_;
  std::vector<std::optional<Received>> begun_;  // by worker: a letter whose bytes have not come
  int next_ = 0;                                // the worker that is looked at first
};

}  // namespace lockstep::steps

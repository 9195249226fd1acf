// Messages between two workers of a group. Each pair has one thread and one order per direction, so
// a message that waits for its receiver delays nothing else. All messages that were posted travel at
// once: else each would wait for a round trip of the one before.
#pragma once

#include <lockstep/comm.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "comm/group.h"
#include "comm/operation.h"

namespace lockstep::comm {

// Receives what one peer sends and keeps it until try_recv asks for it. try_recv may not block, so
// a thread of the mailbox waits for the messages.
//
// Threads:   one thread calls try_take; the receiving thread stays inside.
// Blocking:  never; the destructor interrupts its thread.
// Failure:   try_take throws what ended the link, or Mismatch if the message is not the expected
//            one. The constructor throws Unavailable if no thread can be started.
// Ownership: keeps at most kMostKept messages. The peer's next sends wait then, so that a slow
//            reader does not fill memory.
class Mailbox {
 public:
  Mailbox(const Group& group, int peer);
  ~Mailbox();

  bool try_take(const Buffer& into);

 private:
  struct Message {
    Header header;
    std::vector<std::byte> payload;
  };
  static constexpr std::size_t kMostKept = 64;

  void loop();
  void end(const Failure& failure);
  std::optional<Message> receive();
  bool wait_interruptibly(Transfer& transfer, Deadline deadline);

  const Group& group_;
  int peer_;
  std::uint64_t taken_ = 0;
  base::Mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> kept_ LOCKSTEP_GUARDED_BY(mutex_);
  std::optional<Failure> failure_ LOCKSTEP_GUARDED_BY(mutex_);
  Transfer* awaited_ LOCKSTEP_GUARDED_BY(mutex_) = nullptr;
  bool stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// All messages of one channel.
//
// Threads:   one caller at a time; each direction of each pair has a thread that stays inside.
// Blocking:  never; the returned operations can be waited for.
// Failure:   as Comm.
// Ownership: borrows the group; buffers are borrowed until their operation has ended.
class Messages {
 public:
  explicit Messages(const Group& group) : group_(group) {}

  std::shared_ptr<Operation> send(int to, const Buffer& data);
  std::shared_ptr<Operation> recv(int from, const Buffer& data);
  bool try_recv(int from, const Buffer& data);
  bool idle() const;

 private:
  enum class Direction { kSend, kRecv };
  // One direction of one pair.
  struct Line {
    std::uint64_t sequence = 0;
    Scratch scratch;
    Executor executor;
  };
  std::shared_ptr<Operation> submit(Direction direction, int peer, const Buffer& data);

  const Group& group_;
  std::map<int, Line> outgoing_;
  std::map<int, Line> incoming_;
  std::map<int, Mailbox> mailboxes_;
};

}  // namespace lockstep::comm

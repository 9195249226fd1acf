// Messages between two workers of a group. Each pair has one thread and one order per direction, so a
// message that waits for its receiver delays nothing else. Some messages of a line are under way at once:
// else each would wait for a round trip of the one before.
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

// The messages of a line that are under way, and those that wait for them. A receiver that is late stops
// its sender by it.
//
// Threads:   any.
// Blocking:  never.
// Failure:   add() and leave() throw what posting throws.
// Ownership: shares the messages.
class Window {
 public:
  // One message. Its transfers begin with post().
  class Message {
   public:
    virtual ~Message() = default;
    virtual std::size_t bytes() const = 0;
    virtual void post() = 0;
  };
  // Messages leave in the order in which they were added. The first that has not left is under way.
  void add(std::shared_ptr<Message> message);
  void leave(const Message& message);

 private:
  static constexpr std::size_t kMost = 16;
  static constexpr std::size_t kMostBytes = std::size_t{4} << 20;

  void fill() LOCKSTEP_REQUIRES(mutex_);

  base::Mutex mutex_;
  std::deque<std::shared_ptr<Message>> waiting_ LOCKSTEP_GUARDED_BY(mutex_);
  std::size_t count_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // under way
  std::size_t bytes_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // of these
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
    Window window;
    Executor executor;  // last, so that it goes first: its operations use the others
  };
  std::shared_ptr<Operation> submit(Direction direction, int peer, const Buffer& data);

  const Group& group_;
  std::map<int, Line> outgoing_;
  std::map<int, Line> incoming_;
  std::map<int, Mailbox> mailboxes_;
};

}  // namespace lockstep::comm

// Everything that a worker has with one other over MPI: messages in flight, and word of its end.
#pragma once

#include <deque>
#include <memory>

#include "comm/core/frame_peer.h"
#include "comm/mpi/mpi_frame.h"
#include "comm/mpi/mpi_process.h"

namespace lockstep::comm {

// MPI never sees memory of a caller: it could not be taken back. A frame is copied to memory of the
// peer before it is sent, and from there when it has come.
//
// Threads:   one at a time; the link guards it.
// Blocking:  never.
// Failure:   Unavailable with MPI's own words. Mismatch if messages contradict each other.
// Ownership: borrows the memory of posts until they are done or retired.
class MpiPeer : public FramePeer {
 public:
  MpiPeer(int rank, MpiCommunicator& communicator) : FramePeer(rank), communicator_(communicator) {}

  // A message of so many bytes can be received.
  void arrive(std::size_t bytes);
  // Takes what has come. True if something has.
  bool read();
  // Sends as much as may be under way at a time. True if something was sent.
  bool write();

  bool told() const override { return news_.receipt_came || news_.said || failure; }
  // part: the next write() ends with the last frame to the peer. parted: its last frame has come, too,
  // or it is out of MPI's reach.
  void part() { parting_.due = true; }
  bool parted() const {
    return (parting_.came && parting_.sent && sending_.empty()) || (failure && !news_.said);
  }

  // Gives away the frames that MPI still has.
  void leave(MpiLeftover& leftover);

 private:
  struct Flight {
    std::unique_ptr<MpiRequest> request;
    std::unique_ptr<std::byte[]> memory;
    std::size_t bytes = 0;
  };

  void take(const MpiFrame& frame, const std::byte* bytes, std::size_t count);
  void take_message(const MpiFrame& frame, const std::byte* bytes, std::size_t count);
  void take_data(const MpiFrame& frame, const std::byte* bytes, std::size_t count);
  bool put_news();
  bool put_next();
  void put(const MpiFrame& frame, const void* bytes, std::size_t count);
  void begin_send();
  void put_data();
  std::unique_ptr<std::byte[]> memory_for(std::size_t bytes);
  void keep(Flight flight);

  MpiCommunicator& communicator_;
  std::deque<Flight> coming_;                       // in the order in which MPI has shown them
  std::deque<Flight> sending_;                      // in order
  std::deque<std::unique_ptr<std::byte[]>> spare_;  // each for the longest frame
  struct Parting {
    bool due = false;
    bool sent = false;
    bool came = false;
  };
  Parting parting_;
};

}  // namespace lockstep::comm

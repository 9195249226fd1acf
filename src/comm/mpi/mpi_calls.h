// The calls of MPI that the engine makes, behind one interface: the types and numbers of OpenMPI and
// of MPICH differ. mpi_calls.cpp is compiled once for each of them. It finds the functions in a
// library that is loaded when it is used, so a program that links Lockstep does not link MPI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace lockstep::comm {

// A send or a receive that MPI has under way.
//
// Ownership: MPI uses the memory until done() has returned true. There is no way to take it back.
class MpiRequest {
 public:
  virtual ~MpiRequest() = default;

  // True if MPI does not use the memory any more. Throws Unavailable with MPI's own words.
  virtual bool done() = 0;
};

// A message that can be received now.
struct MpiArrival {
  int peer = 0;
  std::size_t bytes = 0;
};

// A duplicate of MPI_COMM_WORLD: its messages meet no others.
//
// Threads:   any; one call at a time inside.
// Blocking:  never.
// Failure:   Unavailable, with MPI's own words.
class MpiCommunicator {
 public:
  virtual ~MpiCommunicator() = default;  // leaves the duplicate to MPI

  // The duplicate is made by all workers together. False until all have come.
  virtual bool formed() = 0;
  // No request is under way any more, and there will be none.
  virtual void free() = 0;

  virtual std::unique_ptr<MpiRequest> send(int peer, const void* data, std::size_t bytes) = 0;
  virtual std::unique_ptr<MpiRequest> receive(int peer, void* data, std::size_t bytes) = 0;
  // The next message, of any peer. The next receive() from that peer gets it.
  virtual std::optional<MpiArrival> arrival() = 0;
};

// What MPI says about this process.
struct MpiWorld {
  int rank = 0;
  int size = 1;
  bool ours = false;  // the engine has initialised MPI, not the program
};

// One MPI.
//
// Threads:   any; one call at a time inside.
// Blocking:  start, if it initialises MPI, and finalize have no deadline: see mpi_process.h.
// Failure:   Unavailable in one line.
class MpiCalls {
 public:
  virtual ~MpiCalls() = default;

  virtual const char* name() const = 0;  // "OpenMPI" or "MPICH"
  virtual bool started() = 0;            // by anybody, and not finalised
  virtual MpiWorld start() = 0;
  virtual void finalize() = 0;
  virtual std::shared_ptr<MpiCommunicator> duplicate_world() = 0;
};

// Loads the library if the process has not. Throws Unavailable. Each is there if this build has it.
std::unique_ptr<MpiCalls> openmpi_calls();
std::unique_ptr<MpiCalls> mpich_calls();

}  // namespace lockstep::comm

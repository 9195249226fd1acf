// The failures that cross Lockstep's API. There are five. The type alone decides what a program
// that catches one can do next:
//
//   PeerLost     another worker died or left: form a new world, or end
//   Timeout      another worker did not answer in time: the same, or wait longer next time
//   Mismatch     workers disagree on what they are doing: a bug in the program, or two builds
//   BadInput     an argument, a file or a setting is wrong: correct it
//   Unavailable  this build or this host cannot do it: install what the message names
//
// A bug in Lockstep itself is not one of them: it stops the process with a message. If an exception
// shows the bug in the middle of an operation, the peers are told first, and what() of an
// Unavailable says that it is a bug.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep {

enum class ErrorKind : std::uint8_t {
  kPeerLost = 1,
  kTimeout = 2,
  kMismatch = 3,
  kBadInput = 4,
  kUnavailable = 5,
};

// The base of the family: what() says who, what, and the next thing to try.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, std::vector<int> ranks = {})
      : std::runtime_error(message), kind_(kind), ranks_(std::move(ranks)) {}

  ErrorKind kind() const noexcept { return kind_; }

  // The ranks of the workers that the failure is about: those that died, are late, or disagree.
  const std::vector<int>& ranks() const noexcept { return ranks_; }

 private:
  ErrorKind kind_;
  std::vector<int> ranks_;
};

template <ErrorKind kKind>
class ErrorOf : public Error {
 public:
  explicit ErrorOf(const std::string& message, std::vector<int> ranks = {})
      : Error(kKind, message, std::move(ranks)) {}
};

class PeerLost : public ErrorOf<ErrorKind::kPeerLost> {
  using ErrorOf::ErrorOf;
};
class Timeout : public ErrorOf<ErrorKind::kTimeout> {
  using ErrorOf::ErrorOf;
};
class Mismatch : public ErrorOf<ErrorKind::kMismatch> {
  using ErrorOf::ErrorOf;
};
class BadInput : public ErrorOf<ErrorKind::kBadInput> {
  using ErrorOf::ErrorOf;
};
class Unavailable : public ErrorOf<ErrorKind::kUnavailable> {
  using ErrorOf::ErrorOf;
};

// "PeerLost", "Timeout" …
const char* name(ErrorKind kind) noexcept;

// Throws the class that belongs to `kind`.
[[noreturn]] void raise(ErrorKind kind, const std::string& message, std::vector<int> ranks = {});

}  // namespace lockstep

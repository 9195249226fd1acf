// The connections between the launchers of a job on several hosts. Node 0's launcher serves the port at which the others
// meet it, and stays connected with each of them as long as the job runs.
//
//   NodeHost    the end of node 0
//   NodeGuest   the end of every other node
//
// Both send a Beat every second. A launcher that is silent for 3 s is lost: its host is stopped or gone, or the network
// to it is cut.
#pragma once

#include <lockstep/deadline.h>

#include <utility>  // Boost 1.74's Asio uses std::exchange and does not include this

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "control/launch/node_roster.h"
#include "control/rendezvous/door.h"

namespace lockstep::control {

// Tells the user something while launchers meet.
using Note = std::function<void(const std::string&)>;

// Threads:   where the io_context runs.
// Blocking:  meet(), refuse() and part() run the io_context until their deadlines at the latest.
// Failure:   meet() throws CannotBegin, after every node that has come was told.
// Ownership: owns the listener and the connections; the io_context must outlive it.
class NodeHost {
 public:
  NodeHost(boost::asio::io_context& context, Listener listener, const std::string& secret,
           NodeJoin node_0);
  NodeHost(const NodeHost&) = delete;
  NodeHost& operator=(const NodeHost&) = delete;
  ~NodeHost();

  // Waits for the other nodes.
  HostMap meet(Deadline deadline, const Note& note);

  // The job cannot begin. Tells every node, and gives them a moment to read it.
  void refuse(const CannotBegin& reason);

  // Every node that is connected gets the message, or this one.
  void tell(const Message& message);
  void tell(int node, const Message& message);

  // At the end: waits a moment until every node has read what it was told, and left.
  void part();

  // A host wants to join the job that runs, as the node of this number. `start` is what it gets, with all shares; without
  // it `refusal` says why not, or it waits and is asked for again.
  struct Admission {
    std::optional<NodeStart> start;
    std::string refusal;
  };
  std::function<Admission(int node, const NodeJoin&)> when_join;
  std::function<void(int node, const NodeEvent&)> when_event;
  std::function<void(int node, const std::string& why)> when_lost;

 private:
  class State;
  std::shared_ptr<State> state_;
};

// Threads:   where the io_context runs.
// Blocking:  meet() runs the io_context until its deadline at the latest.
// Failure:   meet() throws CannotBegin.
// Ownership: owns the connection; the io_context must outlive it.
class NodeGuest {
 public:
  NodeGuest(boost::asio::io_context& context, Address node_0, std::string secret, NodeJoin join);
  NodeGuest(const NodeGuest&) = delete;
  NodeGuest& operator=(const NodeGuest&) = delete;
  ~NodeGuest();

  // Presents this launcher to node 0, and waits until all have come. Nothing listens before node 0 is started: it tries
  // again until the deadline.
  NodeStart meet(Deadline deadline, const Note& note);

  void tell(const NodeEvent& event);

  // This launcher cannot go on: tells node 0 why, and leaves.
  void give_up(const std::string& why);

  std::function<void(const NodeOrders&)> when_orders;
  std::function<void(const NodeVerdict&)> when_verdict;
  std::function<void(const std::string& why)> when_lost;

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::control

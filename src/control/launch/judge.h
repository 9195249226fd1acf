// Who decides about a job. A launcher tells its judge what happens on its host, and the judge answers with orders, and
// in the end with a verdict.
//
//   OwnJudge   decides itself (JobState), for all hosts: the judge of node 0, and of a job on one host
//   FarJudge   passes everything on to node 0, and its answers back. If node 0 is lost, it ends the workers here; with
//              elastic rules at once, because those of node 0 go on without them
#pragma once

#include <utility>  // Boost 1.74's Asio uses std::exchange and does not include this

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "control/launch/events.h"
#include "control/launch/job_request.h"
#include "control/launch/job_state.h"
#include "control/launch/keeper.h"
#include "control/launch/nodes.h"
#include "control/launch/output.h"
#include "control/rendezvous/loss.h"

namespace lockstep::control {

// Threads:   where the io_context runs.
// Blocking:  never, except part().
// Failure:   none.
// Ownership: the io_context, and what the constructors take by reference, must outlive it.
class Judge {
 public:
  Judge() = default;
  Judge(const Judge&) = delete;
  Judge& operator=(const Judge&) = delete;
  virtual ~Judge() = default;

  std::function<void(const JobState::Orders&)> when_orders;
  // Once, after the last process of the job has ended on every host.
  std::function<void(const NodeVerdict&)> when_verdict;
  Note when_note;
  // Of a job whose workers may leave and join. On node 0: what happens to workers of other hosts. On the other nodes: so
  // many workers wait to join.
  std::function<void(const KeeperEvent&)> when_far_event;
  std::function<void(int)> when_newcomers;
  // On node 0, when a host wants to join: why the job cannot have so many workers, if it cannot; and then the new map.
  std::function<std::optional<std::string>(int workers)> may_have;
  std::function<void(const HostMap&)> when_host;

  // Ranks count over all hosts.
  virtual void on_event(const KeeperEvent& event) = 0;
  virtual void on_loss(const Loss& loss) = 0;
  virtual void on_signal(int signal) = 0;
  virtual void on_output_closed(int error) = 0;
  // Of a job whose workers may leave and join: a generation has formed; others wait for this worker in vain.
  // `again`: nobody of the generation before is in it.
  virtual void on_formed(std::uint64_t /*generation*/, const std::vector<int>& /*ranks*/,
                         bool /*again*/) {}
  virtual void on_newcomers(int /*count*/) {}  // wait to join
  virtual void on_expelled(int /*rank*/, double /*waited_s*/) {}
  virtual void on_dismissed(int /*rank*/) {}  // it is to leave, and the others wait for that
  // The first phase of the last generation was done then.
  virtual void on_first_phase(JobEvents::Clock::time_point /*when*/) {}
  // The user wants so many workers. Why not; empty: it is done, now or between two batches.
  virtual std::string on_resize(int /*workers*/) { return "its number of workers is fixed"; }
  // For `lockstep jobs`. False: another launcher lists this job.
  virtual bool tell_facts(JobFacts& /*facts*/) const { return false; }
  // A line that a worker of this host, counted from 0, has printed. True if it was for the judge and is not shown.
  virtual bool on_line(int /*worker*/, std::string_view /*line*/) { return false; }
  // Nothing of the job is left on this host; how its keeper ended, as a wait status.
  virtual void on_keeper_gone(int wait_status) = 0;

  // Between the verdict and its words: everything that was printed here has been read by now.
  virtual void on_all_read(NodeVerdict& /*verdict*/) {}

  // What has happened, for the report. Null: node 0 knows.
  virtual const JobEvents* events() const { return nullptr; }

  // The job is being cut short.
  virtual bool ending() const = 0;

  // Ctrl-Z may stop the job. Not if other hosts would take it for lost.
  virtual bool may_pause() const { return false; }

  // After the verdict: waits a moment until the other launchers have it, or know that this one leaves.
  virtual void part() {}
};

class OwnJudge final : public Judge {
 public:
  // `nodes` is null for a job on one host. `start` is what hosts get that join later.
  OwnJudge(boost::asio::io_context& context, const RunOptions& options, const HostMap& map,
           std::string program, NodeHost* nodes, NodeStart start = {});

  void on_event(const KeeperEvent& event) override { take_event(map_.node, event); }
  void on_loss(const Loss& loss) override;
  void on_signal(int signal) override { take_signal(map_.node, signal); }
  void on_output_closed(int error) override;
  void on_formed(std::uint64_t generation, const std::vector<int>& ranks, bool again) override;
  void on_newcomers(int count) override;
  void on_expelled(int rank, double waited_s) override;
  void on_dismissed(int rank) override;
  void on_first_phase(JobEvents::Clock::time_point when) override { events_.on_first_phase(when); }
  std::string on_resize(int workers) override;
  bool tell_facts(JobFacts& facts) const override;
  void on_keeper_gone(int wait_status) override { take_end(map_.node, wait_status); }
  void on_all_read(NodeVerdict& verdict) override;
  const JobEvents* events() const override { return &events_; }
  bool ending() const override { return state_.cause() != JobState::Cause::kNone; }
  bool may_pause() const override { return nodes_ == nullptr; }
  void part() override;

 private:
  void take_node_event(int node, const NodeEvent& event);
  void take_far(int node, const KeeperEvent& event);
  void take_event(int node, const KeeperEvent& event);
  void take_ends(int node);
  void take_signal(int node, int signal);
  void take_end(int node, int wait_status);
  void lose(int node, const std::string& why);
  bool dismiss_host(int node);
  void part_if_empty(int node);
  NodeHost::Admission admit(int node, const NodeJoin& join);
  void obey(const JobState::Orders& orders);
  void arm_deadline();
  void conclude_if_over();
  void note_end(const NodeVerdict& verdict);

  const RunOptions& options_;
  HostMap map_;
  NodeHost* nodes_;
  NodeStart start_;
  JobState state_;
  JobReport report_;
  JobEvents events_;
  boost::asio::steady_timer deadline_;
  struct Node {
    std::vector<WorkerEnd> together;  // ends that were noticed together, so far
    bool runs = false;                // something of the job may be left there
    bool leaves = false;              // it is to leave
  };
  std::map<int, Node> by_number_;
  std::uint64_t generation_ = 0;  // the last that has formed
  bool concluded_ = false;
};

class FarJudge final : public Judge {
 public:
  // All launchers agree on whether the job is elastic, or they do not meet.
  FarJudge(boost::asio::io_context& context, const RunOptions& options, const HostMap& map,
           NodeGuest& node_0);

  void on_event(const KeeperEvent& event) override;
  void on_loss(const Loss& loss) override;
  void on_signal(int signal) override;
  void on_output_closed(int error) override;
  void on_expelled(int rank, double waited_s) override;
  void on_keeper_gone(int wait_status) override;
  bool ending() const override { return ending_; }
  void part() override;

 private:
  void obey(const NodeOrders& orders);
  void lose_node_0(const std::string& why);
  void conclude_if_over();

  HostMap map_;
  NodeGuest& node_0_;
  bool elastic_;
  boost::asio::steady_timer deadline_;
  std::optional<NodeVerdict> verdict_;
  std::set<int> live_;  // workers here
  bool gone_ = false;
  bool ending_ = false;
  bool released_ = false;
};

}  // namespace lockstep::control

// A Comm's inside: one order of collectives among the workers of a group, their messages, and what
// is derived from it.
#pragma once

#include <lockstep/comm.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "comm/executor.h"
#include "comm/group.h"
#include "comm/messages.h"

namespace lockstep::comm {

class Channel {
 public:
  explicit Channel(Group group);
  ~Channel();

  static std::shared_ptr<Channel> of_world(std::shared_ptr<Link> link, const CommOptions& options);

  const Group& group() const { return group_; }
  const std::string& engine() const { return engine_; }
  Messages& messages() { return messages_; }

  // Runs a collective in the channel's order. The header's sequence is filled in.
  Work collective(Header header, std::string how, std::function<void(Exchange&)> body);

  std::shared_ptr<Channel> channel(std::uint32_t id);
  std::shared_ptr<Channel> split(std::vector<int> ranks);

  // BadInput, or what ended the link.
  void require_alive() const;
  void require_usable(const Buffer& data) const;
  void require_rank(int rank, const char* role) const;

 private:
  Group group_;
  std::string engine_;
  std::uint64_t sequence_ = 0;
  std::set<std::uint32_t> channels_;
  std::map<std::vector<int>, std::uint64_t> splits_;  // how often each list was split off
  Scratch scratch_;
  Executor collectives_;
  Messages messages_;
};

}  // namespace lockstep::comm

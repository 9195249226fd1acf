#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>
#include <lockstep/metrics.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "control/turns.h"
#include "plan/exact_sum.h"
#include "torch/replica/agreement.h"

namespace lockstep {
namespace metrics {

using plan::ExactSum;

// What workers add up: the words of each name's sum, then those of its weight.
using Message = std::vector<std::int64_t>;

std::size_t index_of(const std::vector<std::string>& names, const std::string& name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  throw BadInput(fmt::format("there is no metric {}: there are {}", name, fmt::join(names, ", ")));
}

void check_names(const std::vector<std::string>& names) {
  for (auto at = names.begin(); at != names.end(); ++at) {
    if (at->empty()) throw BadInput("a metric has no name");
    if (std::find(names.begin(), at, *at) != at)
      throw BadInput(fmt::format("two metrics are called {}", *at));
  }
}

void agree_on(Comm& channel, const std::vector<std::string>& names) {
  std::vector<replica::Property> properties;
  for (std::size_t i = 0; i < names.size(); ++i)
    properties.push_back({fmt::format("metric {}", i), names[i]});
  replica::agree(channel, properties,
                 {"workers have different metrics", "give all of them the same names"});
}

// Operations that are under way, and the channel that they use.
struct Channel {
  std::vector<std::string> names;
  std::vector<std::pair<std::shared_ptr<Message>, Work>> sent;
  Comm comm;  // last, so that it goes first: it ends the operations that use the messages

  Channel(World& world, std::vector<std::string> all)
      : names(std::move(all)), comm(world.open_channel()) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Peers may still need what this worker sent. After an exception they may never come.
  ~Channel() {
    if (std::uncaught_exceptions() > 0) return;
    try {
      for (const auto& [message, work] : sent) work.wait();
    } catch (const Error&) {
      // The world is lost, and says so to the next who uses it.
    }
  }

  Work send(const std::shared_ptr<Message>& message) {
    std::erase_if(sent, [](const auto& one) { return one.second.done(); });
    const CallName call(comm, "Metrics::reduce()");
    Work work = comm.all_reduce({message->data(), message->size(), DType::kInt64});
    sent.emplace_back(message, work);
    return work;
  }
};

}  // namespace metrics

using metrics::index_of;
using plan::ExactSum;

struct Averages::Pending {
  std::shared_ptr<metrics::Channel> channel;
  std::shared_ptr<metrics::Message> message;
  Work work;

  double number(const std::string& name, std::size_t which) const {
    const std::size_t index = index_of(channel->names, name);
    work.wait();
    ExactSum::Words words{};
    const auto first =
        message->begin() + static_cast<std::ptrdiff_t>((2 * index + which) * ExactSum::kWords);
    std::copy_n(first, ExactSum::kWords, words.begin());
    return ExactSum(words).value();
  }
};

double Averages::sum(const std::string& name) const {
  return pending_->number(name, 0);
}
double Averages::weight(const std::string& name) const {
  return pending_->number(name, 1);
}
double Averages::mean(const std::string& name) const {
  const double all = weight(name);
  if (all == 0) throw BadInput(fmt::format("nobody has added anything to the metric {}", name));
  return sum(name) / all;
}

struct Metrics::State {
  struct Tensors {
    std::size_t index = 0;
    torch::Tensor sum;
    torch::Tensor weight;
  };
  std::shared_ptr<metrics::Channel> channel;
  std::shared_ptr<const control::Announcements> announcements;
  std::vector<ExactSum> numbers;  // sum and weight of each name, in turn
  std::vector<Tensors> tensors;   // not read yet

  bool idle() const { return announcements->turns().idle(); }
  static bool is_good(double weight) { return std::isfinite(weight) && weight >= 0; }
  // A weight that is none makes the average none, on all workers.
  void add(std::size_t index, double sum, double weight) {
    numbers[2 * index].add(sum);
    numbers[2 * index + 1].add(is_good(weight) ? weight : std::nan(""));
  }

  // All of them in one copy, so that a GPU is waited for once.
  void read_tensors() {
    if (tensors.empty()) return;
    const auto waiting = std::exchange(tensors, {});
    std::vector<torch::Tensor> all;
    for (const Tensors& one : waiting) {
      for (const torch::Tensor& tensor : {one.sum, one.weight})
        all.push_back(tensor.reshape({}).to(one.sum.device(), torch::kFloat64));
    }
    const torch::Tensor values = torch::stack(all).cpu();
    const auto* const read = values.data_ptr<double>();
    for (std::size_t i = 0; i < waiting.size(); ++i)
      add(waiting[i].index, read[2 * i], read[2 * i + 1]);
  }
};

Metrics::Metrics(World& world, const std::vector<std::string>& names)
    : state_(std::make_shared<State>()) {
  metrics::check_names(names);
  state_->channel = std::make_shared<metrics::Channel>(world, names);
  state_->announcements = world.announcements();
  state_->numbers.resize(2 * names.size());
  metrics::agree_on(state_->channel->comm, names);
}
Metrics::~Metrics() = default;

void Metrics::add(const std::string& name, double sum, double weight) {
  const std::size_t index = index_of(state_->channel->names, name);
  if (!State::is_good(weight)) {
    throw BadInput(
        fmt::format("a weight of the metric {} is {}; it must be 0 or more", name, weight));
  }
  if (!state_->idle()) state_->add(index, sum, weight);
}

void Metrics::add(const std::string& name, const torch::Tensor& sum, double weight) {
  add(name, sum, torch::tensor(weight, torch::kFloat64));
}

void Metrics::add(const std::string& name, const torch::Tensor& sum, const torch::Tensor& weight) {
  const std::size_t index = index_of(state_->channel->names, name);
  for (const torch::Tensor& tensor : {sum, weight}) {
    if (!tensor.defined() || tensor.numel() != 1 || tensor.is_complex())
      throw BadInput(fmt::format("the metric {} wants tensors of one real element", name));
  }
  if (!state_->idle()) state_->tensors.push_back({index, sum.detach(), weight.detach()});
}

Averages Metrics::reduce() {
  state_->read_tensors();
  auto message = std::make_shared<metrics::Message>();
  for (ExactSum& number : state_->numbers) {
    message->insert(message->end(), number.words().begin(), number.words().end());
    number = {};
  }
  Work work = state_->channel->send(message);
  return Averages(std::make_shared<Averages::Pending>(
      Averages::Pending{state_->channel, std::move(message), std::move(work)}));
}

}  // namespace lockstep

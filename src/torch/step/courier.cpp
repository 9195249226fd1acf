#include "torch/step/courier.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "comm/group.h"
#include "comm/operation.h"

namespace lockstep::steps {
namespace {

// Between two looks for letters: a task takes milliseconds, and workers may be more than cores.
constexpr std::chrono::microseconds kShortestRest{20};
constexpr std::chrono::microseconds kLongestRest{500};

}  // namespace

void Errands::post(Request request) {
  {
    const base::Lock lock(mutex_);
    requests_.push_back(std::move(request));
  }
  to_courier_.notify_all();
}

Errands::Brought Errands::wait_for(const Ready& ready, Deadline deadline,
                                   const std::function<void()>& waits) {
  base::Lock lock(mutex_);
  bool in_time = true;
  if (!brought_.failure && !ready(brought_)) waits();
  while (in_time && !brought_.failure && !ready(brought_))
    in_time = lock.wait_until(to_worker_, deadline.when());
  if (brought_.failure) std::rethrow_exception(brought_.failure);
  Brought brought = std::exchange(brought_, {});
  brought_.ended = brought.ended;  // it may come before the worker asks for it
  return brought;
}

void Errands::stop() {
  {
    const base::Lock lock(mutex_);
    stopping_ = true;
  }
  to_courier_.notify_all();
}

std::deque<Errands::Request> Errands::requests() {
  const base::Lock lock(mutex_);
  return std::exchange(requests_, {});
}

void Errands::bring(const std::function<void(Brought&)>& change) {
  {
    const base::Lock lock(mutex_);
    change(brought_);
  }
  to_worker_.notify_all();
}

void Errands::rest(std::chrono::microseconds time) {
  base::Lock lock(mutex_);
  if (requests_.empty() && !stopping_) lock.wait_until(to_courier_, Deadline::after(time).when());
}

bool Errands::stopped() {
  const base::Lock lock(mutex_);
  return stopping_ && requests_.empty();
}

Courier::Courier(const AsynchronousRound::Setting& its, const Cut& cut, Comm& comm)
    : its_(its),
      cut_(cut),
      comm_(comm),
      owner_(its, cut, comm.rank()),
      letters_(comm, [this](int from, const Letter& letter) { return bytes_with(from, letter); }) {
  if (comm_.rank() == Cut::kClerk) clerk_.emplace(its_.tasks, comm_.size(), its_.replayed);
  thread_ = comm::start_thread([this] { run(); });
}

Courier::~Courier() {
  errands_.stop();
  if (thread_.joinable()) thread_.join();
}

Errands::Brought Courier::wait_for(const Errands::Ready& ready, const std::string& what) {
  bool waited = false;
  auto brought = errands_.wait_for(ready, Deadline::after(comm_.timeout()), [&] {
    waited = true;
    its_.waits(true);
  });
  if (waited) its_.waits(false);
  if (!ready(brought)) give_up_round(comm_, what);
  return brought;
}

plan::Clerk::Answer Courier::ask() {
  errands_.post([this] { tell_clerk({.kind = Letter::Kind::kAsk}); });
  return *wait_for([](const auto& brought) { return brought.answer.has_value(); }, "a task").answer;
}

void Courier::take(std::int64_t task, SliceMemory& weights, Letterbox::Bytes& buffers) {
  errands_.post([this, task, to = &weights, buffers_to = &buffers] {
    weights_ = to;
    buffers_ = buffers_to;
    tell_clerk({.kind = Letter::Kind::kTake, .task = task});
  });
  const auto all = static_cast<std::size_t>(comm_.size());
  wait_for([all](const auto& brought) { return brought.slices.size() == all; }, "the weights");
}

void Courier::give(std::int64_t task, double factor, const plan::TaskLoss& loss,
                   std::vector<Letterbox::Bytes> parts) {
  // Shared, because a function must be copyable.
  auto shared = std::make_shared<std::vector<Letterbox::Bytes>>(std::move(parts));
  errands_.post([this, task, factor, loss, parts = std::move(shared)] {
    for (int owner = 0; owner < comm_.size(); ++owner) {
      Letterbox::Bytes& part = (*parts)[static_cast<std::size_t>(owner)];
      if (owner == comm_.rank()) {
        owner_.receive(task, factor, std::move(part));
        continue;
      }
      letters_.send(owner, {.kind = Letter::Kind::kGradient, .task = task, .factor = factor},
                    std::move(part));
    }
    tell_clerk({.kind = Letter::Kind::kDone, .task = task, .loss = loss});
  });
}

plan::TaskLoss Courier::end() {
  wait_for([](const auto& brought) { return brought.ended; }, "the end of the round");
  thread_.join();
  return *loss_;
}

void Courier::run() noexcept {
  try {
    for (auto rest = kShortestRest; !loss_;) {
      if (errands_.stopped()) return;
      if (carry())
        rest = kShortestRest;
      else
        errands_.rest(std::exchange(rest, std::min(rest * 2, kLongestRest)));
    }
    letters_.flush();
    errands_.bring([](auto& brought) { brought.ended = true; });
  } catch (const Error& error) {
    comm::Inside::fail(comm_, error);
    errands_.bring([](auto& brought) { brought.failure = std::current_exception(); });
  } catch (const std::exception& error) {
    comm_.leave(error.what());
    errands_.bring([](auto& brought) { brought.failure = std::current_exception(); });
  }
}

// Whether there was something to do. One entry of the log at a time: an update takes longer than a letter.
bool Courier::carry() {
  bool did = do_requests();
  while (auto received = letters_.receive()) {
    handle(std::move(*received));
    did = true;
  }
  return follow_log() || did;
}

bool Courier::do_requests() {
  const auto requests = errands_.requests();
  for (const auto& request : requests) request();
  return !requests.empty();
}

bool Courier::follow_log() {
  const auto entry = owner_.follow();
  if (!entry) return false;
  if (entry->kind == plan::Clerk::LogEntry::Kind::kEnd) loss_ = entry->loss;
  if (entry->kind != plan::Clerk::LogEntry::Kind::kGive) return true;
  if (entry->worker == comm_.rank())
    put_weights(comm_.rank(), owner_.given());
  else
    letters_.send(entry->worker, {.kind = Letter::Kind::kWeights}, owner_.given());
  return true;
}

void Courier::put_weights(int owner, const Letterbox::Bytes& bytes) {
  const Slice& slice = cut_.of(owner);
  weights_->put(slice, bytes.data());
  if (cut_.buffers_of(owner) > 0)
    buffers_->assign(bytes.begin() + static_cast<std::ptrdiff_t>(slice.bytes()), bytes.end());
  errands_.bring([owner](auto& brought) { brought.slices.insert(owner); });
}

std::size_t Courier::bytes_with(int from, const Letter& letter) const {
  if (letter.kind == Letter::Kind::kWeights) return cut_.given_by(from);
  return letter.kind == Letter::Kind::kGradient ? cut_.sent_to(comm_.rank()) : 0;
}

void Courier::handle(Letterbox::Received received) {
  const Letter& letter = received.letter;
  switch (letter.kind) {
    case Letter::Kind::kAnswer:
      errands_.bring([&](auto& brought) { brought.answer = letter.answer; });
      break;
    case Letter::Kind::kLog:
      owner_.enter(letter.entry);
      break;
    case Letter::Kind::kGradient:
      owner_.receive(letter.task, letter.factor, std::move(received.bytes));
      break;
    case Letter::Kind::kWeights:
      put_weights(received.from, received.bytes);
      break;
    case Letter::Kind::kAsk:
    case Letter::Kind::kTake:
    case Letter::Kind::kDone:
      handle_by_clerk(received.from, letter);
      break;
  }
}

void Courier::tell_clerk(const Letter& letter) {
  if (clerk_)
    handle_by_clerk(comm_.rank(), letter);
  else
    letters_.send(Cut::kClerk, letter);
}

void Courier::handle_by_clerk(int from, const Letter& letter) {
  const bool is_known = letter.task >= 0 && letter.task < its_.tasks.count();
  if (!clerk_ || !is_known)
    throw Mismatch(fmt::format("rank {} sent a letter that no asynchronous round has", from),
                   {from});
  if (letter.kind == Letter::Kind::kAsk)
    clerk_->ask(from);
  else if (letter.kind == Letter::Kind::kTake)
    clerk_->take(from, letter.task);
  else
    clerk_->done(from, letter.task, letter.loss);
  speak_for_clerk();
}

void Courier::speak_for_clerk() {
  for (const plan::Clerk::Answer& answer : clerk_->answers()) {
    if (answer.worker == comm_.rank())
      errands_.bring([&](auto& brought) { brought.answer = answer; });
    else
      letters_.send(answer.worker, {.kind = Letter::Kind::kAnswer, .answer = answer});
  }
  for (const plan::Clerk::LogEntry& entry : clerk_->log()) {
    for (int owner = 0; owner < comm_.size(); ++owner) {
      if (owner != comm_.rank()) letters_.send(owner, {.kind = Letter::Kind::kLog, .entry = entry});
    }
    owner_.enter(entry);
  }
}

}  // namespace lockstep::steps

// What every engine must do when a worker is late, lost or of another mind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/comm.h>

#include <stdexcept>
#include <thread>

#include "comm/engines.h"
#include "comm/operation.h"
#include "tests/comm/conformance.h"
#include "tests/support/elements.h"
#include "tests/support/mpi_workers.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_P(Conformance, ASilentPeerEndsInTimeoutThatNamesIt) {
  Tally finished;
  const auto outcomes = run_workers(world(3, milliseconds(400)), [&](Comm& comm) {
    std::vector<float> data(100'000, 1.0F);
    comm.all_reduce(buffer_of(data)).wait();
    if (comm.rank() == 2) {
      while (finished.load() < 2)
        std::this_thread::sleep_for(milliseconds(5));  // the silence under test
      return;
    }
    try {
      comm.all_reduce(buffer_of(data)).wait();
    } catch (const Error&) {
      ++finished;
      EXPECT_THROW(comm.barrier(), Timeout);  // dead, and says so on every later call
      throw;
    }
  });
  for (const int rank : {0, 1}) {
    EXPECT_EQ(outcomes[rank].kind, ErrorKind::kTimeout) << outcomes[rank].text;
    EXPECT_THAT(outcomes[rank].ranks, Contains(2)) << outcomes[rank].text;
    EXPECT_THAT(outcomes[rank].text, HasSubstr("for rank 2 in all_reduce #1 of 100000 float32"));
    EXPECT_LT(outcomes[rank].took, milliseconds(5000));
  }
}

// Each of a ring waits for its neighbour, and the first to give up is not the neighbour of the silent one.
TEST_P(Conformance, TheSilentEndOfARowOfWaitingWorkersIsNamedWhoeverGivesUpFirst) {
  constexpr int kSize = 5;
  Tally finished;
  const auto outcomes = run_workers(world(kSize, milliseconds(1500)), [&](Comm& comm) {
    std::vector<float> data(10'000, 1.0F);
    comm.barrier().wait();
    if (comm.rank() == 0) {
      while (finished.load() < kSize - 1)
        std::this_thread::sleep_for(milliseconds(5));  // the silence
      return;
    }
    if (comm.rank() != 2) std::this_thread::sleep_for(milliseconds(1000));  // the others
    try {
      comm.all_reduce(buffer_of(data), {.algorithm = Algorithm::kRing}).wait();
    } catch (const Error&) {
      ++finished;
      throw;
    }
  });
  for (int rank = 1; rank < kSize; ++rank) {
    EXPECT_EQ(outcomes[rank].kind, ErrorKind::kTimeout) << outcomes[rank].text;
    EXPECT_THAT(outcomes[rank].ranks, ElementsAre(0))
        << "rank " << rank << ": " << outcomes[rank].text;
  }
}

// Far before the deadline. Processes of MPI look for messages all the time, and those of another test may be beside them.
milliseconds soon(const std::string& engine) {
  return milliseconds(over_mpi(engine) ? 13'000 : 5000);
}

TEST_P(Conformance, AClosedPeerEndsInPeerLostThatNamesIt) {
  const auto outcomes = run_workers(world(3), [&](Comm& comm) {
    std::vector<float> data(100'000, 1.0F);
    comm.all_reduce(buffer_of(data)).wait();
    if (comm.rank() == 2) return;  // its Comm is destroyed
    comm.all_reduce(buffer_of(data)).wait();
  });
  for (const int rank : {0, 1}) {
    EXPECT_EQ(outcomes[rank].kind, ErrorKind::kPeerLost) << outcomes[rank].text;
    EXPECT_THAT(outcomes[rank].ranks, Contains(2)) << outcomes[rank].text;
    EXPECT_LT(outcomes[rank].took, soon(GetParam()));
  }
}

TEST_P(Conformance, WhoLeavesForAReasonOfItsOwnIsPeerLostWithThatReason) {
  const auto outcomes = run_workers(world(3, milliseconds(15'000)), [](Comm& comm) {
    comm.barrier().wait();
    if (comm.rank() == 1) comm.leave("it has seen enough");
    comm.barrier().wait();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, ErrorKind::kPeerLost) << outcome.text;
    EXPECT_THAT(outcome.ranks, ElementsAre(1)) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr("rank 1 has left the world: it has seen enough"));
    EXPECT_LT(outcome.took, soon(GetParam()));
  }
}

TEST_P(Conformance, LeavingTogetherAfterTheLastOperationIsNoFailure) {
  for (int round = 0; round < 20; ++round) {
    run_all(world(4), [](Comm& comm) {
      std::vector<float> data(2000, 1.0F);
      comm.all_reduce(buffer_of(data)).wait();
    });
  }
}

TEST_P(Conformance, ACommDestroyedInTheMiddleOfAnOperationIsPeerLostToTheOthers) {
  const auto outcomes = run_workers(world(2), [&](Comm& comm) {
    std::vector<float> data(100'000, 1.0F);
    if (comm.rank() == 1) {
      std::vector<float> more(10);
      comm.all_reduce(buffer_of(data)).wait();
      const Work dropped = comm.recv(0, buffer_of(more));
      Comm(std::move(comm));  // destroyed here, `more` still alive
      return;
    }
    comm.all_reduce(buffer_of(data)).wait();
    comm.barrier().wait();
  });
  EXPECT_FALSE(outcomes[1].kind) << outcomes[1].text;
  EXPECT_EQ(outcomes[0].kind, ErrorKind::kPeerLost) << outcomes[0].text;
  EXPECT_THAT(outcomes[0].ranks, Contains(1));
}

TEST_P(Conformance, AWaitWithADeadlineReturnsWhenAllAreThere) {
  run_all(world(3), [](Comm& comm) {
    const auto soon = [] { return Deadline::after(milliseconds(15'000)); };
    for (const std::size_t count : {3UL, 30'000UL}) {
      std::vector<float> data(count, 1.0F);
      comm.barrier().wait(soon());
      comm.all_reduce(buffer_of(data)).wait(soon());
      comm.broadcast(buffer_of(data), 1).wait(soon());
      comm.reduce_scatter(buffer_of(data)).wait(soon());
      comm.all_gather(buffer_of(data)).wait(soon());
      std::vector<float> result(count);
      comm.all_to_all(buffer_of(data), buffer_of(result)).wait(soon());
      EXPECT_EQ(result[0], 9);
    }
  });
}

TEST_P(Conformance, ADeadlineOfAShortOperationEndsTheWaitForALatePeer) {
  run_all(world(2), [](Comm& comm) {
    if (comm.rank() == 1) {
      EXPECT_THROW(comm.recv(0, {nullptr, 0}).wait(), Error);  // until rank 0 has given up
      return;
    }
    const auto begun = std::chrono::steady_clock::now();
    EXPECT_THROW(comm.barrier().wait(Deadline::after(milliseconds(100))), Timeout);
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(10));
  });
}

TEST_P(Conformance, AWaitThatRunsOutOfTimeGivesTheBufferBackAndEndsTheComm) {
  const auto outcomes = run_workers(world(2), [&](Comm& comm) {
    if (comm.rank() == 1) {
      comm.barrier().wait();  // never comes to the all_reduce
      std::vector<float> data(10);
      comm.all_reduce(buffer_of(data)).wait();
      return;
    }
    comm.barrier().wait();
    std::vector<float> other(20'000);
    const Work work = comm.recv(1, buffer_of(other));
    EXPECT_THROW(work.wait(Deadline::after(milliseconds(50))), Timeout);
    EXPECT_TRUE(work.done());
    EXPECT_THROW(comm.barrier(), Timeout);
  });
  EXPECT_FALSE(outcomes[0].kind) << outcomes[0].text;
  EXPECT_TRUE(outcomes[1].kind) << "rank 1 must learn that rank 0 has ended";
}

struct Disagreement {
  const char* what;
  std::function<Work(Comm&, Buffer)> usual;
  std::function<Work(Comm&, Buffer)> other;
};

std::vector<Disagreement> disagreements() {
  const auto reduce = [](ReduceOptions options) {
    return [options](Comm& comm, Buffer data) { return comm.all_reduce(data, options); };
  };
  const auto all_to_all = [](std::size_t count) {
    return [count](Comm& comm, Buffer data) {
      return comm.all_to_all(data.slice(0, count), data.slice(count, count));
    };
  };
  const auto usual = reduce({});
  return {
      {"operation", usual, [](Comm& comm, Buffer data) { return comm.broadcast(data, 1); }},
      {"barrier", usual, [](Comm& comm, Buffer) { return comm.barrier(); }},
      {"size", usual,
       [](Comm& comm, Buffer data) { return comm.all_reduce(data.slice(0, data.count - 1)); }},
      {"large against small", usual,
       [](Comm& comm, Buffer data) { return comm.all_reduce(data.slice(0, 10)); }},
      {"small against small",
       [](Comm& comm, Buffer data) { return comm.all_reduce(data.slice(0, 9)); },
       [](Comm& comm, Buffer data) { return comm.all_reduce(data.slice(0, 10)); }},
      {"small operation", [](Comm& comm, Buffer data) { return comm.all_gather(data.slice(0, 9)); },
       [](Comm& comm, Buffer data) { return comm.all_reduce(data.slice(0, 9)); }},
      {"small broadcast", [](Comm& comm, Buffer data) { return comm.all_reduce(data.slice(0, 9)); },
       [](Comm& comm, Buffer data) { return comm.broadcast(data.slice(0, 9), 1); }},
      {"dtype", usual,
       [](Comm& comm, Buffer data) {
         data.dtype = DType::kInt32;
         return comm.all_reduce(data);
       }},
      {"reduce op", usual, reduce({ReduceOp::kMax})},
      {"algorithm", reduce({.algorithm = Algorithm::kRing}),
       reduce({.algorithm = Algorithm::kTree})},
      {"counts", [](Comm& comm, Buffer data) { return comm.all_gather(data); },
       [](Comm& comm, Buffer data) {
         return comm.all_gather(data, {0, 0, data.count});
       }},
      {"counts of slices", all_to_all(24'000),
       [](Comm& comm, Buffer data) {
         const std::size_t all = data.count / 2;
         return comm.all_to_all(data.slice(0, all), data.slice(all, all),
                                {all, 0, 0, 0, all, 0, 0, 0, all});
       }},
      {"large slices against small", all_to_all(24'000), all_to_all(9)},
      {"small slices", all_to_all(9), all_to_all(12)},
      {"counts of small slices", all_to_all(9),
       [](Comm& comm, Buffer data) {
         return comm.all_to_all(data.slice(0, 9), data.slice(9, 9), {9, 0, 0, 0, 9, 0, 0, 0, 9});
       }},
      {"small gather", all_to_all(9),
       [](Comm& comm, Buffer data) { return comm.all_gather(data.slice(0, 9)); }},
      {"ring size", reduce({.algorithm = Algorithm::kRing}),
       [](Comm& comm, Buffer data) {
         return comm.all_reduce(data.slice(0, 5), {.algorithm = Algorithm::kRing});
       }},
  };
}

TEST_P(Conformance, RanksThatDisagreeAllGetAMismatchThatNamesThem) {
  const milliseconds deadline = soon(GetParam()) + milliseconds(1000);
  for (const Disagreement& disagreement : disagreements()) {
    SCOPED_TRACE(disagreement.what);
    const auto outcomes = run_workers(world(3, deadline), [&](Comm& comm) {
      std::vector<float> data(50'000, 1.0F);
      comm.all_reduce(buffer_of(data)).wait();
      (comm.rank() == 1 ? disagreement.other : disagreement.usual)(comm, buffer_of(data)).wait();
      comm.barrier().wait();  // whoever's part needed nobody learns of it at the next call
    });
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.kind, ErrorKind::kMismatch) << outcome.text;
      EXPECT_THAT(outcome.ranks, Contains(1)) << outcome.text;
      EXPECT_THAT(outcome.text, HasSubstr("#1")) << "what each is doing";
      EXPECT_LT(outcome.took, soon(GetParam())) << "learnt of it at the deadline only";
    }
  }
}

TEST_P(Conformance, MessagesThatDisagreeAreAMismatchOnBothSides) {
  for (const std::size_t sent : {5UL, 100'000UL}) {
    const auto outcomes = run_workers(world(2, milliseconds(5000)), [&](Comm& comm) {
      std::vector<float> data(200'000);
      if (comm.rank() == 0) {
        comm.send(1, buffer_of(data).slice(0, sent)).wait();
      } else {
        comm.recv(0, buffer_of(data).slice(0, 7)).wait();
      }
      comm.barrier().wait();
    });
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.kind, ErrorKind::kMismatch) << outcome.text;
      EXPECT_THAT(outcome.text, HasSubstr("message #0 of"));
    }
  }
}

TEST_P(Conformance, AFactorOfWholeNumbersIsRefusedAndHarmsNothing) {
  run_all(world(2), [](Comm& comm) {
    std::vector<std::int32_t> whole{1};
    std::vector<float> most{1};
    EXPECT_THROW(comm.all_reduce(buffer_of(whole), {.factor = 0.5}), BadInput);
    EXPECT_THROW(comm.all_reduce(buffer_of(most), {.op = ReduceOp::kMax, .factor = 0.5}), BadInput);
    comm.all_reduce(buffer_of(whole)).wait();
    EXPECT_EQ(whole[0], 2);
  });
}

TEST_P(Conformance, BadInputIsThrownByTheCallAndHarmsNothing) {
  run_all(world(2), [](Comm& comm) {
    std::vector<float> data(10, 1.0F);
    EXPECT_THROW(comm.broadcast(buffer_of(data), 2), BadInput);
    EXPECT_THROW(comm.broadcast(buffer_of(data), -1), BadInput);
    EXPECT_THROW(comm.send(comm.rank(), buffer_of(data)), BadInput);
    EXPECT_THROW(comm.recv(7, buffer_of(data)), BadInput);
    EXPECT_THROW(comm.all_gather(buffer_of(data), {1, 2}), BadInput);
    EXPECT_THROW(comm.all_reduce({nullptr, 5, DType::kFloat32}), BadInput);
    EXPECT_THROW(comm.all_reduce({data.data(), 5, DType::kFloat32, {DeviceKind::kCuda, 0}}),
                 BadInput);
    EXPECT_THROW(comm.split({0, 0, 1}), BadInput);
    EXPECT_THROW(comm.split({1 - comm.rank()}), BadInput);
    EXPECT_THROW(comm.reduce({buffer_of(data), buffer_of(data)}, 2, buffer_of(data)), BadInput);
    EXPECT_THROW(comm.reduce({buffer_of(data)}, 1, buffer_of(data)), BadInput);
    comm.all_reduce(buffer_of(data)).wait();
    EXPECT_EQ(data[9], 2.0F);
  });
}

TEST_P(Conformance, AllToAllRefusesWhatItCannotDoAndGoesOn) {
  run_all(world(2), [](Comm& comm) {
    std::vector<float> data(10, static_cast<float>(comm.rank()));
    std::vector<float> result(10);
    std::vector<double> doubles(10);
    const Buffer from = buffer_of(data);
    const Buffer to = buffer_of(result);
    std::vector<std::size_t> too_long(4, 5);
    too_long[comm.rank() == 0 ? 3 : 0] = ~std::size_t{0} / 2;  // from the other worker to itself
    EXPECT_THROW(comm.all_to_all(from, to.slice(0, 8)), BadInput);
    EXPECT_THROW(comm.all_to_all(from.slice(0, 9), to.slice(0, 9)), BadInput);
    EXPECT_THROW(comm.all_to_all(from, to, {5, 5}), BadInput);
    EXPECT_THROW(comm.all_to_all(from, to, {5, 4, 5, 4}), BadInput);
    EXPECT_THROW(comm.all_to_all(from, to, {5, 6, 6, 5}), BadInput);
    EXPECT_THROW(comm.all_to_all(from, to, too_long), BadInput);
    EXPECT_THROW(comm.all_to_all(from, from), BadInput);
    EXPECT_THROW(comm.all_to_all(from.slice(0, 6), from.slice(4, 6)), BadInput);
    EXPECT_THROW(comm.all_to_all(from, buffer_of(doubles)), BadInput);
    EXPECT_THROW(comm.all_to_all(from, {nullptr, 10, DType::kFloat32}), BadInput);
    comm.all_to_all(from.slice(0, 4), from.slice(4, 4)).wait();
    EXPECT_EQ(data, (std::vector<float>{data[0], data[0], data[0], data[0], 0, 0, 1, 1, data[0],
                                        data[0]}));
  });
}

void expect_a_bug(const std::shared_ptr<comm::Link>& link) {
  comm::Operation operation(link, "a test", []() -> std::shared_ptr<comm::DeviceWork> {
    throw std::out_of_range("at(3)");
  });
  operation.run();
  try {
    operation.wait();
    ADD_FAILURE() << "the operation did not fail";
  } catch (const Unavailable& error) {
    EXPECT_THAT(error.what(), HasSubstr("report it with this line: at(3)"));
    EXPECT_THAT(error.ranks(), ElementsAre(0));
  }
}

TEST_P(Conformance, ABugInAnOperationIsCalledOneOnEveryWorker) {
  run_bootstraps(world(2), [&](Bootstrap& bootstrap) {
    const auto link = comm::connect_link(engine_called(GetParam()), bootstrap, {});
    if (bootstrap.rank() == 0) return expect_a_bug(link);
    const auto told = link->heard_from(0, Deadline::after(milliseconds(20'000)));
    ASSERT_TRUE(told);
    EXPECT_THAT(told->text, HasSubstr("rank 0: a bug in Lockstep"));
  });
}

// A program's own, which may throw what it likes.
TEST_P(Conformance, ABootstrapThatFailsIsToldApartFromABugAndFromALackOfMemory) {
  struct Broken : Wrapped {
    using Wrapped::Wrapped;
    std::string get(std::string_view, Deadline) override {
      throw std::runtime_error("the store is gone");
    }
    void put(std::string_view, std::string_view, Deadline deadline) override { get({}, deadline); }
  };
  LocalBootstrap bootstrap(std::make_shared<LocalStore>(), "broken", 0, 2);
  Broken broken(bootstrap);
  try {
    connect(engine_called(GetParam()), broken, {});
    ADD_FAILURE() << "connected";
  } catch (const Unavailable& error) {
    EXPECT_THAT(error.what(), HasSubstr("the Bootstrap failed: the store is gone"));
  }
}

// What a peer says why it ends names ranks, and they are followed.
TEST_P(Conformance, ARankThatAPeerMadeUpIsSomebodyWhoHasSaidNothing) {
  run_bootstraps(world(2), [&](Bootstrap& bootstrap) {
    const auto link = comm::connect_link(engine_called(GetParam()), bootstrap, {});
    for (const int nobody : {-1, 2, 100'000'000}) {
      EXPECT_FALSE(link->heard_from(nobody, Deadline::after(milliseconds(1)))) << nobody;
    }
  });
}

}  // namespace
}  // namespace lockstep::testing

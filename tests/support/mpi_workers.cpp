#include "tests/support/mpi_workers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <thread>

#include "base/environment.h"
#include "tests/support/outcomes.h"

namespace lockstep::testing {
namespace {

struct MpiLauncher {
  const char* engine;
  const char* program;  // empty: there is none
};
constexpr MpiLauncher kLaunchers[] = {{"mpi_openmpi", LOCKSTEP_TEST_MPIEXEC_openmpi},
                                      {"mpi_mpich", LOCKSTEP_TEST_MPIEXEC_mpich}};

// What the first process tells the workers.
constexpr const char* kFolder = "LOCKSTEP_TEST_MPI_FOLDER";
constexpr const char* kWorld = "LOCKSTEP_TEST_MPI_WORLD";

std::string current_test() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  return fmt::format("{}.{}", info->test_suite_name(), info->name());
}

// How many a test has made already. With --gtest_repeat a test runs again, at another time.
int number_in_test(const char* what) {
  static std::string run;
  static std::map<std::string, int> numbers;
  const auto* result = ::testing::UnitTest::GetInstance()->current_test_info()->result();
  const std::string now = fmt::format("{} {}", current_test(), result->start_timestamp());
  if (std::exchange(run, now) != now) numbers.clear();
  return numbers[what]++;
}

int rank_of_worker() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    if (const auto rank = base::environment(variable)) return std::stoi(*rank);
  }
  throw BadInput("the launcher has given no rank");
}

[[noreturn]] void be_a_worker(const std::string& folder, int size,
                              const std::function<void(Bootstrap&)>& body) {
  const int rank = rank_of_worker();
  ::testing::TestPartResultArray results;
  Outcome outcome;
  {
    using Reporter = ::testing::ScopedFakeTestPartResultReporter;
    const Reporter reporter(Reporter::INTERCEPT_ALL_THREADS, &results);
    outcome = outcome_of([&] {
      FolderBootstrap bootstrap(folder, rank, size);
      body(bootstrap);
    });
  }
  std::string wrong;
  for (int i = 0; i < results.size(); ++i) {
    const auto& result = results.GetTestPartResult(i);
    if (result.failed())
      wrong +=
          fmt::format("{}:{}: {}\n", result.file_name(), result.line_number(), result.message());
  }
  publish(fmt::format("{}/wrong-{}", folder, rank), wrong);
  publish(fmt::format("{}/outcome-{}", folder, rank), to_text(outcome));
  std::exit(0);  // as a program ends: MPI is finalised
}

pid_t start(const std::vector<std::string>& words, const std::string& log) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // the launcher takes its processes with it
  if (::getppid() != parent) ::_exit(1);
  const int fd = ::open(log.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  ::dup2(fd, 1);
  ::dup2(fd, 2);
  std::vector<char*> arguments;
  for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  ::_exit(127);
}

// The exit status; nothing if it had to be killed.
std::optional<int> await_end(pid_t process, Deadline deadline) {
  int status = 0;
  while (::waitpid(process, &status, WNOHANG) != process) {
    if (deadline.expired()) {
      ::kill(process, SIGTERM);
      std::this_thread::sleep_for(std::chrono::seconds(2));
      ::kill(process, SIGKILL);
      ::waitpid(process, &status, 0);
      return std::nullopt;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // waitpid has no deadline
  }
  return status;
}

}  // namespace

std::vector<std::string> mpi_engines() {
  std::vector<std::string> names;
  for (const MpiLauncher& launcher : kLaunchers) {
    if (*launcher.program != 0) names.emplace_back(launcher.engine);
  }
  return names;
}

std::vector<std::string> mpi_launch(const std::string& engine, int size,
                                    const std::string& folder) {
  for (const MpiLauncher& launcher : kLaunchers) {
    if (engine != launcher.engine) continue;
    return {"/usr/bin/env",
            "TMPDIR=" + folder,
            "OMPI_ALLOW_RUN_AS_ROOT=1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
            "OMPI_MCA_rmaps_base_oversubscribe=1",
            "OMPI_MCA_hwloc_base_binding_policy=none",
            launcher.program,
            "-n",
            std::to_string(size)};
  }
  throw BadInput("no MPI launcher for " + engine);
}

std::vector<Outcome> run_mpi_workers(const WorldSpec& spec,
                                     const std::function<void(Bootstrap&)>& body) {
  const int number = number_in_test("world");
  if (const auto wanted = base::environment(kWorld)) {
    if (std::stoi(*wanted) == number) be_a_worker(*base::environment(kFolder), spec.size, body);
    return std::vector<Outcome>(static_cast<std::size_t>(spec.size));
  }
  char name[] = "/tmp/lockstep-test-XXXXXX";
  const std::string folder = ::mkdtemp(name);
  auto words = mpi_launch(spec.engine, spec.size, folder);
  words.insert(words.begin() + 1,
               {fmt::format("{}={}", kFolder, folder), fmt::format("{}={}", kWorld, number)});
  words.insert(words.end(), {std::filesystem::read_symlink("/proc/self/exe").string(),
                             "--gtest_filter=" + current_test(), "--gtest_repeat=1"});
  const auto status = await_end(start(words, folder + "/log"),
                                Deadline::after(spec.timeout + std::chrono::seconds(60)));
  std::vector<Outcome> outcomes;
  for (int rank = 0; rank < spec.size; ++rank) {
    const std::string wrong = slurp(fmt::format("{}/wrong-{}", folder, rank));
    if (!wrong.empty()) ADD_FAILURE() << "rank " << rank << ":\n" << wrong;
    const std::string outcome = slurp(fmt::format("{}/outcome-{}", folder, rank));
    if (outcome.empty()) ADD_FAILURE() << "rank " << rank << " has ended without an outcome";
    outcomes.push_back(from_text(outcome));
  }
  if (!status || *status != 0)
    ADD_FAILURE() << fmt::format("{}\n{}", fmt::join(words, " "), slurp(folder + "/log"));
  std::filesystem::remove_all(folder);
  return outcomes;
}

// Between processes: a file in the world's folder.
Tally::Tally() {
  const int number = number_in_test("tally");
  void* memory = nullptr;
  if (const auto folder = base::environment(kFolder)) {
    const std::string path = fmt::format("{}/tally-{}", *folder, number);
    const int fd = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 || ::ftruncate(fd, sizeof *count_) != 0) throw Unavailable("cannot make " + path);
    memory = ::mmap(nullptr, sizeof *count_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
  } else {
    memory =
        ::mmap(nullptr, sizeof *count_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (memory == MAP_FAILED) throw Unavailable("no memory for a tally");
  count_ = static_cast<std::atomic<int>*>(memory);  // a new page is all zero
}

Tally::~Tally() {
  ::munmap(count_, sizeof *count_);
}

}  // namespace lockstep::testing

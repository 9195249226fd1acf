#include "bench/step_cuda.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "bench/command.h"
#include "bench/step.h"
#include "control/launch/program.h"

namespace lockstep::bench {
namespace {

// cuBLAS gives the same bits in every run only if each stream has its own workspace. This setting
// does that.
constexpr char kWorkspace[] = "CUBLAS_WORKSPACE_CONFIG";
constexpr char kWorkspaceSetting[] = ":4096:8";

constexpr auto kSystems = std::to_array<CudaSystem>({
    {"plain", "", true, false, false, "LibTorch and torch::optim, gradients set to none"},
    {"drop-in", "pytorch-ddp-views", true, false, false, "data_parallel and lockstep::optim"},
    {"drop-in-forced", "drop-in", true, false, true,
     "the same, its buckets reduced over nccl though there is one worker"},
    {"trainer", "pytorch-graph", true, false, false, "lockstep::Trainer"},
    {"trainer-unchecked", "trainer", true, false, false,
     "lockstep::Trainer without the divergence check"},
    {"trainer-deterministic", "pytorch-graph-deterministic", true, true, false,
     "lockstep::Trainer, deterministic algorithms, attention by flash"},
    {"pytorch", "", false, false, false, "PyTorch, fused optimizer, gradients set to none"},
    {"pytorch-ddp", "pytorch", false, false, false,
     "the same in DistributedDataParallel over NCCL, by its defaults"},
    {"pytorch-ddp-views", "pytorch", false, false, false,
     "the same, gradient_as_bucket_view and static_graph"},
    {"pytorch-graph", "", false, false, true,
     "PyTorch, the whole step one CUDA graph, fused capturable optimizer"},
    {"pytorch-graph-deterministic", "", false, true, true,
     "the same, deterministic algorithms, attention by flash"},
});

struct Said {
  int code = -1;
  std::string text;  // on standard output, without the last newline
};

Said said_by(const std::string& command) {
  Said said;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return said;
  char buffer[512];
  while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) said.text += buffer;
  const int status = ::pclose(pipe);
  said.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  while (said.text.ends_with('\n')) said.text.pop_back();
  return said;
}

std::string in_quotes(const std::string& word) {
  std::string text = "'";
  for (const char letter : word) text += letter == '\'' ? "'\\''" : std::string(1, letter);
  return text + "'";
}

bool any_asked_for(const StepArguments& arguments, bool ours) {
  return std::any_of(kSystems.begin(), kSystems.end(), [&](const CudaSystem& system) {
    return system.ours == ours && asked_for(arguments.systems, system.name);
  });
}

void look_for_program(CudaHost& host) {
  host.program = control::own_file("lockstep-train");
  if (host.program.empty()) {
    host.program_problem =
        "this build of Lockstep has no LibTorch layer: install LibTorch with CUDA and build again";
    return;
  }
  const Said said = said_by(in_quotes(host.program) + " bench-step look-for-cuda 2>/dev/null");
  if (said.code == 0) return;
  host.program_problem = said.text.empty() ? "lockstep-train does not start" : said.text;
}

void look_for_python(CudaHost& host) {
  host.script = control::own_file("lockstep_bench_cuda.py");
  for (const char* python : {"python3", "/usr/bin/python3"}) {
    const std::string look = " -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'";
    if (said_by(python + look + " 2>/dev/null").code != 0) continue;
    host.python = python;
    break;
  }
  if (host.python.empty() || host.script.empty())
    host.python_problem = "no python3 with a PyTorch that sees a GPU";
}

Contender contender_of(const StepArguments& arguments, const CudaHost& host,
                       const CudaSystem& system) {
  const auto words = step_job_words(arguments);
  std::vector<std::string> program = {host.python, host.script, system.name};
  if (system.ours)
    program = {host.program, "bench-step", system.name, std::to_string(arguments.shards)};
  program.insert(program.end(), words.begin(), words.end());
  // One worker has no peer to talk to, so it needs no engine, unless collectives are forced.
  const bool talks = system.ours && (arguments.workers > 1 || system.alone);
  Contender contender{
      system.name, system.ours, system.settings,
      launched({arguments.workers, arguments.threads, talks ? "nccl" : "", program}),
      allocator_settings()};
  contender.variables.emplace_back("LOCKSTEP_DEVICE", "cuda");
  if (system.deterministic) contender.variables.emplace_back(kWorkspace, kWorkspaceSetting);
  return contender;
}

}  // namespace

std::span<const CudaSystem> cuda_systems() {
  return kSystems;
}

const CudaSystem* cuda_system(const std::string& name) {
  const auto* found = std::find_if(kSystems.begin(), kSystems.end(),
                                   [&](const CudaSystem& one) { return name == one.name; });
  return found == kSystems.end() ? nullptr : found;
}

CudaHost look_for_cuda(const StepArguments& arguments) {
  CudaHost host;
  if (any_asked_for(arguments, true)) look_for_program(host);
  if (any_asked_for(arguments, false)) look_for_python(host);
  return host;
}

Field cuda_field(const StepArguments& arguments, const CudaHost& host) {
  std::vector<std::string> known;
  known.reserve(kSystems.size());
  for (const CudaSystem& system : kSystems) known.emplace_back(system.name);
  check_names("--systems", arguments.systems, known);
  Field field;
  for (const CudaSystem& system : kSystems) {
    if (!asked_for(arguments.systems, system.name)) continue;
    const std::string& problem = system.ours ? host.program_problem : host.python_problem;
    if (system.alone && arguments.workers > 1) {
      field.left_out.push_back(fmt::format("{}: it is for one worker", system.name));
    } else if (!problem.empty() && system.ours) {
      throw Unavailable("bench step: " + problem);
    } else if (!problem.empty()) {
      field.left_out.push_back(fmt::format("{}: {}", system.name, problem));
    } else {
      field.contenders.push_back(contender_of(arguments, host, system));
    }
  }
  return field;
}

int bench_cuda_step(const StepArguments& arguments) {
  const Field field = cuda_field(arguments, look_for_cuda(arguments));
  if (field.contenders.empty()) {
    throw Unavailable(fmt::format("bench step: nothing to measure{}{}",
                                  field.left_out.empty() ? "" : ", without ",
                                  fmt::join(field.left_out, "; ")));
  }
  return measure_field(arguments, field, CudaStepReport{arguments, {}});
}

}  // namespace lockstep::bench

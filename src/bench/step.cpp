#include "bench/step.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cstdlib>

#include "bench/command.h"
#include "bench/measure/cores.h"
#include "bench/step_cuda.h"
#include "control/launch/program.h"

namespace lockstep::bench {
namespace {

Contender launched_contender(const StepArguments& arguments, const std::string& name,
                             const std::string& engine, std::vector<std::string> program) {
  const auto words = step_job_words(arguments);
  program.insert(program.end(), words.begin(), words.end());
  return {name,
          true,
          "",
          launched({arguments.workers, arguments.threads, engine, program}),
          allocator_settings(),
          arguments.workers};
}

void add_pytorch(const StepArguments& arguments, Field& field) {
  const std::string script = control::own_file("lockstep_bench_ddp.py");
  const std::string python = python_with_torch();
  if (python.empty() || script.empty()) {
    field.left_out.emplace_back("pytorch-ddp: not found; install python3-torch");
  } else {
    field.contenders.push_back(launched_contender(arguments, "pytorch-ddp", "", {python, script}));
    field.contenders.back().ours = false;
    field.contenders.back().turn_takers = 0;
    field.contenders.back().settings =
        "Gloo; gradient_as_bucket_view, static_graph, foreach, gradients set to none; pinned";
  }
}

struct Own {
  std::string name;
  std::string engine;
  std::string system;  // as the worker program calls it
  std::string settings;
};

// Only on request: it shows what the divergence check costs.
void add_unchecked(const StepArguments& arguments, std::vector<Own>& systems) {
  if (!arguments.peers || !asked_for(arguments.peers, kUnchecked)) return;
  for (const std::string& engine : chosen_engines(arguments.engines)) {
    systems.push_back({fmt::format("lockstep-{}-{}", engine, kUnchecked), engine,
                       "trainer-unchecked", "lockstep::Trainer, no divergence check; pinned"});
  }
}

// The systems that train a job of shards over an engine.
void add_jobs(const std::string& engine, std::vector<Own>& systems) {
  const std::string name = "lockstep-" + engine;
  systems.push_back({name + "-fused", engine, "trainer", "lockstep::Trainer; pinned"});
  systems.push_back({name + "-step", engine, "step", "lockstep::Job and Step; pinned"});
}

// The systems that host several shards on a worker.
std::vector<Own> accumulating_systems(const StepArguments& arguments) {
  std::vector<Own> systems;
  if (asked_for(arguments.peers, kPlainAccumulate)) {
    systems.push_back(
        {kPlainAccumulate, "shm", "plain",
         "LibTorch and torch::optim, autograd adds up, gradients set to none; pinned"});
  }
  if (asked_for(arguments.peers, kPlainAccumulateFlat)) {
    systems.push_back({kPlainAccumulateFlat, "shm", "plain-flat",
                       "LibTorch and lockstep::optim, autograd adds up; pinned"});
  }
  for (const std::string& engine : chosen_engines(arguments.engines)) add_jobs(engine, systems);
  add_unchecked(arguments, systems);
  return systems;
}

std::vector<Own> own_systems(const StepArguments& arguments) {
  if (arguments.shards > arguments.workers) return accumulating_systems(arguments);
  std::vector<Own> systems;
  if (asked_for(arguments.peers, "plain"))
    systems.push_back(
        {"plain", "shm", "plain", "LibTorch and torch::optim, gradients set to none; pinned"});
  if (asked_for(arguments.peers, kPlainBarrier))
    systems.push_back({kPlainBarrier, "shm", kPlainBarrier,
                       "the same, a barrier of all workers ends every step; pinned"});
  if (asked_for(arguments.peers, "plain-zeroed"))
    systems.push_back({"plain-zeroed", "shm", "plain-zeroed",
                       "LibTorch and torch::optim, gradients set to zero; pinned"});
  if (asked_for(arguments.peers, "plain-flat"))
    systems.push_back({"plain-flat", "shm", "plain-flat", "LibTorch and lockstep::optim; pinned"});
  for (const std::string& engine : chosen_engines(arguments.engines)) {
    systems.push_back(
        {"lockstep-" + engine, engine, "drop-in", "data_parallel and lockstep::optim; pinned"});
    add_jobs(engine, systems);
  }
  add_unchecked(arguments, systems);
  return systems;
}

// All rows of a run. Their systems take turns together.
struct StepRun {
  Field field;
  std::vector<StepResult> results;  // by contender
  std::vector<std::size_t> row_of;  // the same
  std::vector<StepReport> rows;
};

StepReport empty_report(const StepArguments& arguments) {
  return {.workers = arguments.workers,
          .shards = arguments.shards,
          .threads = arguments.threads,
          .model = arguments.model,
          .batch = arguments.batch,
          .optimizer = arguments.optimizer,
          .bucket_bytes = arguments.bucket_bytes,
          .results = {}};
}

StepRun run_of(const StepArguments& arguments) {
  StepRun run;
  for (const WorkerRow& row : arguments.rows) {
    const StepArguments here = of_row(arguments, row);
    Field field = step_field(here);
    for (Contender& contender : field.contenders) {
      StepResult& result = run.results.emplace_back();
      result.system = contender.name;
      result.settings = contender.settings;
      run.row_of.push_back(run.rows.size());
      if (arguments.rows.size() > 1)
        contender.name = fmt::format("{}x{} {}", row.workers, row.threads, contender.name);
      run.field.contenders.push_back(std::move(contender));
    }
    run.field.left_out = std::move(field.left_out);  // the same in every row
    run.rows.push_back(empty_report(here));
  }
  return run;
}

void announce_rows(const StepArguments& arguments, const Field& field) {
  const auto largest = std::max_element(
      arguments.rows.begin(), arguments.rows.end(),
      [](const WorkerRow& a, const WorkerRow& b) { return a.workers < b.workers; });
  announce(of_row(arguments, *largest), field);
  const int cores = static_cast<int>(allowed_cores().size());
  for (const WorkerRow& row : arguments.rows) {
    if (row.workers <= cores && row.workers * row.threads > cores) {
      fmt::print(stderr, "lockstep: row {}x{}: {} threads share {} cores\n", row.workers,
                 row.threads, row.workers * row.threads, cores);
    }
  }
}

}  // namespace

std::string python_with_torch() {
  for (std::string python : {"/usr/bin/python3", "python3"}) {
    const std::string look =
        python + " -c 'import importlib.util as u, sys; sys.exit(u.find_spec(\"torch\") is None)'";
    if (std::system((look + " >/dev/null 2>&1").c_str()) == 0) return python;
  }
  return {};
}

std::vector<std::string> step_job_words(const StepArguments& arguments) {
  return {arguments.model,
          std::to_string(arguments.batch),
          arguments.optimizer,
          fmt::format("{}", arguments.seconds),
          std::to_string(arguments.iterations),
          arguments.device,
          arguments.precision,
          arguments.gpt_size,
          std::to_string(arguments.context),
          std::to_string(arguments.bucket_bytes)};
}

Field step_field(const StepArguments& arguments) {
  const bool accumulates = arguments.shards > arguments.workers;
  const std::vector<std::string> several = {kPlainAccumulate, kPlainAccumulateFlat, kUnchecked};
  const std::vector<std::string> one = {"plain",      kPlainBarrier, "plain-zeroed",
                                        "plain-flat", "pytorch-ddp", kUnchecked};
  check_names("--peers", arguments.peers, accumulates ? several : one);
  const std::string program = control::own_file("lockstep-train");
  Field field;
  for (const Own& own : own_systems(arguments)) {
    if (program.empty()) {
      throw Unavailable(
          "this build of Lockstep has no LibTorch layer, which `bench step` needs: install "
          "libtorch-dev and build again");
    }
    field.contenders.push_back(
        launched_contender(arguments, own.name, own.engine,
                           {program, "bench-step", own.system, std::to_string(arguments.shards)}));
    field.contenders.back().settings = own.settings;
  }
  if (!accumulates && asked_for(arguments.peers, "pytorch-ddp")) add_pytorch(arguments, field);
  return field;
}

int bench_step(const std::vector<std::string>& words) {
  const StepArguments arguments = parse_step_arguments(words);
  if (arguments.device == "cuda") return bench_cuda_step(arguments);
  StepRun run = run_of(arguments);
  if (run.field.contenders.empty())
    throw BadInput("nothing to measure: no engine and no peer is left");
  announce_rows(arguments, run.field);
  const RoundsEnd end =
      run_rounds(run.field.contenders, {arguments.rounds, longest_run(arguments), arguments.turns},
                 TakeRun([&](std::size_t i, const auto& lines) { run.results[i].add(lines); }));
  for (std::size_t i = 0; i < run.results.size(); ++i) {
    if (!end.failed[i]) run.rows[run.row_of[i]].results.push_back(std::move(run.results[i]));
  }
  finish(arguments, {as_json(run.rows), as_table(run.rows), as_plot(run.rows)});
  return end.good ? 0 : 1;
}

}  // namespace lockstep::bench

#include "app/help.h"

namespace lockstep::app {
namespace {

constexpr char kHelp[] = R"(Lockstep: data-parallel training for C++.

  lockstep run -n 4 -- ./train --epochs 3   start 4 workers on this host
  lockstep train --model cnn                train one of the models that are built in
  lockstep bench allreduce                  measure this machine, beside Gloo, MPI and PyTorch
  lockstep doctor                           what this host can do, and what is slow about it

  lockstep run --help                       the options of a command
  lockstep --version
)";

constexpr char kRunHelp[] = R"(Starts a program as N workers of one job and ends with them.

  lockstep run -n N [options] [--] PROGRAM [arguments]

  -n, --workers N    how many workers, 1 to 4096
  -e, --env K=V      set a variable for every worker; may be given again
      --threads T    OpenMP and OpenBLAS threads per worker (default: what you exported, else 1)
      --engine E     what moves bytes between workers (see `lockstep doctor`; default: the best)
      --device D     cpu, or cuda: one GPU for each worker (default: cpu)
      --timeout S    seconds that joining, and any later operation, may take (default: 300)
      --grace S      seconds from a forwarded Ctrl-C, SIGTERM, SIGHUP or SIGQUIT to SIGKILL (default: 10)
      --log-dir D    also write each worker's output to D/rank-3.out and D/rank-3.err
  -q, --quiet        no notes, only failures

Each line that worker 3 prints appears as "[3] line". Ctrl-C goes to all workers; a second one
kills them. When a worker fails, the others are ended within 2 s and the exit code is that worker's.
A PyTorch script runs unchanged: the variables are those of torchrun.

Exit codes:
  0          every worker exited with 0
  N          a worker exited with N; of several, the one that the others failed because of
  128 + S    signal S killed a worker, or the launcher got it (Ctrl-C: 130, SIGTERM: 143, a closed terminal: 129)
  141        nobody reads the output any more
  127, 126   there is no such program, or it cannot be executed
  2          an option is wrong
  1          the output cannot be written, or the host does not allow the job

Examples:
  lockstep run -n 8 ./train --epochs 3
  lockstep run -n 2 --threads 4 --log-dir logs -- ./train
  lockstep run -n 2 --env LOCKSTEP_LOG=info -- python3 train.py
)";

constexpr char kDoctorHelp[] =
    R"(Looks at this build and this host: engines, devices, processors, memory, limits.

  lockstep doctor [--json]

Every finding is ok, note, slow or missing, with the next step where there is one. The exit code is 0
unless something makes Lockstep unusable here.
)";

}  // namespace

const char* help() noexcept {
  return kHelp;
}

const char* run_help() noexcept {
  return kRunHelp;
}

const char* doctor_help() noexcept {
  return kDoctorHelp;
}

}  // namespace lockstep::app

#include "bench/arguments.h"

namespace lockstep::bench {

const char* const kBenchHelp =
    R"(Measures on this machine, now, beside the systems that people would use instead.

  lockstep bench allreduce [options]   how fast buffers are summed, and the limit of this machine
  lockstep bench step [options]        how fast a model trains, and workers that never talk
  lockstep bench hosts [options]       both between hosts, which are namespaces of this machine
  lockstep bench faults [options]      what it costs to lose a worker, and to be able to

  lockstep bench allreduce --help      the options of each

Leave the machine alone meanwhile. How it is measured: docs/internals/benchmarks.md.
)";

const char* const kAllreduceHelp =
    R"(Times all-reduces of float32 buffers; every result is compared, exactly.

  lockstep bench allreduce [options]

  -n, --workers N     (default: one for each core, at least 2)
      --sizes S,…     such as 1KiB,1MiB,64MiB (default: powers of two from 1KiB to 256MiB)
      --order         also what adding in the order of the tree costs: two systems more, below
      --engines E,…   Lockstep's, such as shm,tcp, or none (default: every one that was built)
      --peers P,…     gloo, openmpi, mpich, or none (default: those that are found)
      --rounds R      turns of each system (default: 5)
      --seconds S     that one size takes in one turn, about (default: 0.1), for 1000 samples at
                      the most, or
      --iterations I  samples of one size in one turn
      --json          one array of objects instead of a table
      --save FILE     also write that array there
      --plot FILE     also draw it, as SVG

Columns: the median, quartiles and 99th percentile over all samples of all turns; a sample is the
slowest worker's time. algbw is bytes over time, busbw that times 2(N-1)/N, as nccl-tests define
them. There are two limits, both the engine's add-and-store loop by all workers at once, without
synchronisation; "of limit" and "of dirty" are their medians over the system's.

  limit               on private memory: what the loop and the memory can do
  limit-dirty         on all workers' buffers, each just written by its owner, so that its lines are
                      dirty in another core's cache: what an all-reduce of operands that were just
                      computed can reach

With --order `in-place-tree` and `in-place-ranks` sum the same shared memory in the same slices with
the same loop, and differ in the order of addition alone: that of the tree, or rank after rank.

The exit code is 1 if one of Lockstep's engines failed or gave a wrong sum; a peer that fails is
reported and left out. So is one that takes far longer than was asked for.

Examples:
  lockstep bench allreduce --workers 2
  lockstep bench allreduce -n 4 --sizes 64KiB,16MiB --engines shm --peers openmpi --plot speed.svg
  lockstep bench allreduce --peers none --json > allreduce.json
)";

const char* const kStepHelp =
    R"(Times training steps: zero_grad, forward, backward, step, on a fixed batch of random samples.

  lockstep bench step [options]

      --device D      cpu or cuda (default: cpu); cuda has other systems and defaults, below
      --model M       mlp, cnn, resnet18 or gpt, as in `lockstep train` (default: mlp)
      --gpt-size S    tiny, small, medium or gpt2 (default: tiny)
      --context C     tokens of a sample of gpt (default: 128)
      --bucket-bytes B
                      of gradients that travel together, ours and PyTorch's (default: 26214400)
      --batch B       samples of each shard (default: 32)
      --shards S      at least as many as workers (default: as many)
      --optimizer O   sgd, sgd-momentum, adam or adamw (default: sgd-momentum)
  -n, --workers N     (default: one for each core, at least 2)
      --rows R,…      several in one run: workers, and threads of each, as in 2x8,4x4,16x1; instead
                      of --workers (default: one row; a worker has its part of the cores)
      --engines E,…   Lockstep's, such as shm,tcp, or none (default: every one that was built)
      --peers P,…     plain, plain-barrier, plain-zeroed, plain-flat, pytorch-ddp, or none (default:
                      those found);
                      with more shards than workers plain-accumulate, plain-accumulate-flat;
                      in any case unchecked, if it is asked for
      --rounds R      each starts all systems again (default: 3)
      --seconds S     of steps of a system in one round (default: 4), 20000 at the most, or
      --iterations I  steps of a system in one round
      --turns T       systems run side by side and take turns, each T times in a round, so that all
                      of them meet the same machine; all are in memory then. 1: each runs alone
                      (default: 10, for gpt larger than tiny 1; pytorch-ddp always runs alone)
      --json          one array of objects instead of a table
      --save FILE     also write that array there
      --plot FILE     also draw it, as SVG

  plain              as many LibTorch workers, with torch::optim, that never talk
  plain-barrier      the same, with a barrier of all workers at the end of every step: what waiting
                     for the slowest worker costs
  plain-zeroed       as plain, its gradients set to zero instead of to none
  plain-flat         as plain, with Lockstep's optimizer
  lockstep-E         data_parallel and lockstep::optim in an ordinary loop, over engine E
  lockstep-E-fused   lockstep::Trainer, over engine E
  lockstep-E-step    a program's own loop with lockstep::Job and Step, over engine E
  lockstep-E-unchecked  lockstep::Trainer without the divergence check
  pytorch-ddp        PyTorch's DistributedDataParallel over Gloo, from Python

With more shards than workers, where a step is several passes forward and backward, against:

  plain-accumulate        as plain; autograd adds the gradients of all passes up in param.grad
  plain-accumulate-flat   as plain-flat, the same
  lockstep-E-fused, -step as above; every shard's gradients are added where the tree says

On cuda, by the GPU's clock, from the end of a step to the end of the next:

  -n, --workers N     (default: 1), a GPU each
      --systems S,…   of those below (default: all that can run here)
      --precision P   float32, with TF32 in convolutions only; bf16: autocast; or bf16-held: the
                      drop-in and the trainer hold weights of layers in bfloat16, too, beside
                      float32 masters (default: bf16 for gpt, else float32)
                      other defaults: adamw; mlp batch 128; cnn, resnet18 256; gpt 8, gpt2, 1024 tokens

  plain, drop-in, trainer      as plain, lockstep-E, lockstep-E-fused above
  drop-in-forced               the drop-in, its buckets reduced over nccl though there is one worker
  trainer-unchecked            the trainer without the divergence check
  trainer-deterministic        the trainer with deterministic algorithms
  pytorch                      PyTorch with a fused optimizer
  pytorch-ddp                  the same in DistributedDataParallel over NCCL
  pytorch-ddp-views            the same with gradient_as_bucket_view and static_graph
  pytorch-graph                PyTorch, the whole step one CUDA graph
  pytorch-graph-deterministic  the same with deterministic algorithms

The median and quartiles are over all steps of all workers and rounds; on cuda "fastest" is the
median of a system's fastest turn, since libraries that look for their fastest kernels do not find
the same in every process. Efficiency is the median of plain, or plain-accumulate, over the
system's: 100 % is a synchronisation that costs nothing. "of plain-barrier" is the same against
workers that wait for each other but exchange nothing.

Examples:
  lockstep bench step --workers 2
  lockstep bench step --model cnn --batch 64 --optimizer adamw --engines shm --plot step.svg
  lockstep bench step --workers 2 --shards 8 --batch 8 --engines shm
  lockstep bench step --rows 2x8,4x4,8x2,16x1 --engines shm --plot workers.svg
  lockstep bench step --device cuda --model gpt
)";

const char* const kHostsHelp =
    R"(Times all-reduces and training steps between hosts that are network namespaces of this machine,
with a line of a given rate each way between each host and a switch. Needs root or user namespaces,
and iproute2.

  lockstep bench hosts [options]

      --hosts H       (default: 2)
  -n, --workers N     of each host (default: 2)
      --rate R        of each line each way, such as 100mbit, 1gbit, 10gbit (default: 1gbit)
      --mtu M         of the lines; larger packets have fewer headers (default: 1500)
      --rows R,…      what is measured, of the below (default: loopback,allreduce,mlp,cnn)
      --sizes S,…     of all-reduces between hosts (default: 16MiB)
      --loopback-sizes S,…
                      of all-reduces over the loopback (default: 1KiB,64MiB)
      --batch B       samples of each worker in a step (default: 128)
      --peers P,…     sockets, gloo, openmpi, plain, pytorch-ddp, or none (default: those found)
      --rounds R      turns of each system (default: 3)
      --seconds S     of samples of a system in one round, about (default: 2), or
      --iterations I  samples of a system in one round
      --json          one array of objects instead of a table
      --save FILE     also write that array there

  loopback    2 workers of this host over the engine tcp, with tags and without
  allreduce   workers of all hosts, with tags and without
  mlp, cnn    training steps: zero_grad, forward, backward, step

  lockstep         over the engine between hosts. In steps: data_parallel and lockstep::optim
  lockstep-plain   the same, without tags
  lockstep-fused   lockstep::Trainer
  sockets          TCP sockets without anything else, in the same pattern. Between hosts only what
                   must cross the network
  sockets-spin     the same, but a worker spins before it sleeps, as the engine does
  gloo, openmpi    Gloo's ring, and OpenMPI over TCP and shared memory
  plain            as many LibTorch workers that never talk
  pytorch-ddp      PyTorch's DistributedDataParallel over Gloo

A column "÷ X" is the median of a system over that of X in the same run. `least` is computed: 2(H-1)/H
of the buffer over the rate. All workers share the cores of this machine, as workers of several hosts
do not: with more workers than cores, steps say what the network costs, and not how fast hosts are.

Examples:
  lockstep bench hosts
  lockstep bench hosts --rows allreduce --hosts 4 --workers 1 --rate 10gbit --sizes 1MiB,64MiB
)";

const char* const kFaultsHelp =
    R"(Kills workers of jobs that go on without them (docs/guide/faults.md), and measures what it costs.

  lockstep bench faults [options]

      --rows R,…      what is measured, of the below (default: kills,rate,cost)
  -n, --workers N     (default: 2)
      --model M       mlp, cnn, resnet18 or gpt (default: mlp)
      --batch B       samples of each worker in a step (default: 32)
      --optimizer O   of kills and rate: sgd, sgd-momentum, adam or adamw (default: sgd-momentum)
      --kills K       of the row kills (default: 20)
      --minutes M     of the row rate, with kills, and as many without (default: 10)
      --rounds R      of rate and cost (default: 5)
      --turns T       of each system in a round of cost (default: 10)
      --seconds S     of samples of a system in one round of cost, about (default: 10), or
      --iterations I  steps of a system in one round
      --json          one array of objects instead of a table
      --save FILE     also write that array there
      --plot FILE     also draw the times after a kill, as SVG

  kills   SIGKILL from outside to any worker, at a random moment: when the launcher has taken note of
          it, when the survivors have committed the next step, when a replacement takes part
  rate    samples a second at one kill a minute, restarts included, against the undisturbed job
  cost    steps in which nothing happens, with --max-restarts 5 and without, in turns

A replacement is killed only after 10 s, because the launcher replaces one that dies sooner after a
pause. So a kill takes some 12 s.

Examples:
  lockstep bench faults
  lockstep bench faults --rows kills --kills 100 --plot faults.svg
)";

}  // namespace lockstep::bench

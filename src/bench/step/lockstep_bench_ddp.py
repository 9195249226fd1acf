"""One worker of PyTorch's DistributedDataParallel over Gloo in `lockstep bench step`.

    lockstep_bench_ddp.py MODEL BATCH OPTIMIZER SECONDS STEPS cpu float32 GPT_SIZE CONTEXT

Started with the variables of torchrun. Model, batch, optimizer, warm-up and the line that it prints are those of
lockstep-train bench-step (step/worker.cpp).
"""
import os
import platform
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from lockstep_bench_models import bucket_option, make_batch, make_model, print_times

WARM_UP, LEAST_STEPS, MOST_STEPS = 6, 5, 20000


def pin():
    """As cores.cpp does it: a worker's part of the cores; workers that outnumber them share."""
    rank, workers, cores = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sorted(os.sched_getaffinity(0))
    own = cores[rank * len(cores) // workers:(rank + 1) * len(cores) // workers]
    os.sched_setaffinity(0, own if workers < len(cores) else {cores[rank % len(cores)]})


def make_optimizer(name, parameters):
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=1e-2, foreach=True)
    if name == "adam":
        return torch.optim.Adam(parameters, lr=1e-3, foreach=True)
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0 if name == "sgd" else 0.9, foreach=True)


def timed(step, seconds, steps):
    for _ in range(WARM_UP // 2):
        step()
    begun = time.perf_counter()
    for _ in range(WARM_UP // 2):
        step()
    if steps == 0:
        each = torch.tensor([(time.perf_counter() - begun) / (WARM_UP // 2)], dtype=torch.float64)
        dist.all_reduce(each, op=dist.ReduceOp.MAX)
        steps = min(max(int(seconds / each.item()), LEAST_STEPS), MOST_STEPS)
    times = []
    dist.barrier()
    for _ in range(steps):
        begun = time.perf_counter()
        step()
        times.append(1000 * (time.perf_counter() - begun))
    return times


def proportional_set_mb():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:")) * 1024 / 1e6


def state_mb(model, optimizer):
    tensors = list(model.parameters())
    for state in optimizer.state.values():
        tensors += [value for value in state.values() if torch.is_tensor(value)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) / 1e6


def main():
    name, batch, optimizer_name, seconds, steps, _, _, size, context, bucket_bytes = sys.argv[1:]
    pin()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if platform.machine() == "aarch64":
        torch._C._set_mkldnn_enabled(False)  # slow there, as Debian builds it
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = make_model(name, size, int(context))
    torch.manual_seed(dist.get_rank() + 1)
    data, target = make_batch(name, int(batch), size, int(context))
    model = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True, static_graph=True,
                                                      **bucket_option(bucket_bytes))
    optimizer = make_optimizer(optimizer_name, model.parameters())

    def step():
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(data).flatten(0, -2), target.flatten()).backward()
        optimizer.step()

    times = timed(step, float(seconds), int(steps))
    dist.barrier()
    pss_mb = proportional_set_mb()
    dist.barrier()
    print_times(dist.get_rank(), times, pss_mb=round(pss_mb, 2), state_mb=round(state_mb(net, optimizer), 3))


main()

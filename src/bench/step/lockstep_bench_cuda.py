"""One worker of PyTorch on a GPU in `lockstep bench step --device cuda`.

    lockstep_bench_cuda.py SYSTEM MODEL BATCH OPTIMIZER SECONDS STEPS cuda PRECISION GPT_SIZE CONTEXT BUCKET_BYTES

Started with the variables of torchrun. Model, batch, optimizer, warm-up, switches and clock are those of lockstep-train
bench-step (step/worker.cpp, step/device.cpp).

    pytorch                      forward, backward and a fused optimizer
    pytorch-ddp                  the same in DistributedDataParallel over NCCL, by its defaults
    pytorch-ddp-views            the same, gradient_as_bucket_view and static_graph
    pytorch-graph                the whole step of `pytorch` as one CUDA graph, a capturable optimizer
    pytorch-graph-deterministic  the same with deterministic algorithms
"""
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

from lockstep_bench_models import bucket_option, make_batch, make_model, print_times

WARM_UP, LEAST_STEPS, MOST_STEPS = 20, 5, 20000
CAPTURE_WARM_UP = 11  # as PyTorch's documentation has it for what else a step may contain, such as DDP
DDP_OPTIONS = {
    "pytorch-ddp": {"gradient_as_bucket_view": False},
    "pytorch-ddp-views": {"gradient_as_bucket_view": True, "static_graph": True},
}


def set_switches(deterministic, precision):
    torch.backends.cudnn.benchmark = not deterministic
    if not deterministic:
        return
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cuda.enable_flash_sdp(True)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_math_sdp(precision == "float32")  # flash has none


def make_optimizer(name, parameters, capturable):
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=1e-2, fused=True, capturable=capturable)
    if name == "adam":
        return torch.optim.Adam(parameters, lr=1e-3, fused=True, capturable=capturable)
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0 if name == "sgd" else 0.9, fused=True)


def captured(step):
    """The step as a graph, after some on a side stream, as PyTorch's documentation asks."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(CAPTURE_WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def mark():
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def agreed_steps(seconds, each_ms):
    each = torch.tensor([each_ms], dtype=torch.float64, device="cuda")
    if dist.is_initialized():
        dist.all_reduce(each, op=dist.ReduceOp.MAX)
    return min(max(int(seconds * 1000 / each.item()), LEAST_STEPS), MOST_STEPS)


def timed(step, seconds, steps):
    """The GPU's time from the end of a step to the end of the next; the host waits for nothing meanwhile."""
    for _ in range(WARM_UP // 2):
        step()
    begun = mark()
    for _ in range(WARM_UP // 2):
        step()
    ended = mark()
    torch.cuda.synchronize()
    if steps == 0:
        steps = agreed_steps(seconds, begun.elapsed_time(ended) / (WARM_UP // 2))
    if dist.is_initialized():
        dist.barrier()
    marks = [mark()]
    for _ in range(steps):
        step()
        marks.append(mark())
    torch.cuda.synchronize()
    return [before.elapsed_time(after) for before, after in zip(marks, marks[1:])]


def main():
    system, name, batch, optimizer_name, seconds, steps, _, precision, size, context, bucket_bytes = sys.argv[1:]
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    set_switches(system.endswith("deterministic"), precision)
    if system in DDP_OPTIONS:
        dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    model = make_model(name, size, int(context)).to(device)
    torch.manual_seed(rank + 1)
    data, target = (part.to(device) for part in make_batch(name, int(batch), size, int(context)))
    if system in DDP_OPTIONS:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device.index], **bucket_option(bucket_bytes),
                                                          **DDP_OPTIONS[system])
    as_graph = system.startswith("pytorch-graph")
    optimizer = make_optimizer(optimizer_name, model.parameters(), capturable=as_graph)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=precision != "float32"):
            loss = F.cross_entropy(model(data).flatten(0, -2), target.flatten())
        loss.backward()
        optimizer.step()

    times = timed(captured(step) if as_graph else step, float(seconds), int(steps))
    print_times(rank, times)
    os._exit(0)  # taking PyTorch down lasts, and is not measured


main()

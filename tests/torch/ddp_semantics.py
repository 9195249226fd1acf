"""One worker of PyTorch's DistributedDataParallel over Gloo, in the cases of uneven_test.cpp.

    ddp_semantics.py OUTPUT

Writes OUTPUT.<rank>: a line for each case, its name and the numbers that it left. Knows nothing of Lockstep.
"""
import sys

import torch
import torch.distributed as dist
import torch.nn as nn

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)


class Net(nn.Module):
    """first and second are used as a case says; nobody uses third."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 4)
        self.third = nn.Linear(2, 2)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_((torch.arange(p.numel()) * 1.7).cos().view_as(p) / 3 + 0.2)

    def forward(self, x, what="layers"):
        if what == "first":
            return self.first(x)
        if what == "reused":
            return self.second(self.first(torch.tanh(self.first(torch.tanh(self.first(x))))))
        if what == "norm":
            return self.second(self.norm(self.first(x)))
        return self.second(torch.relu(self.first(x)))


def batch(rank, i):
    return (torch.arange(6 * 8) * 0.37 + rank * 1.3 + i * 0.71).sin().view(6, 8)


def gradients(net):
    all = []
    for p in net.parameters():
        all += [float("nan")] * p.numel() if p.grad is None else p.grad.flatten().tolist()
    return all


def weights(net):
    return [value for p in net.parameters() for value in p.flatten().tolist()]


def unused(rank):
    net = Net()
    model = nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
    model(batch(rank, 0), "layers" if rank == 0 else "first").pow(2).mean().backward()
    return gradients(net)


def static_graph(rank):
    net = Net()
    model = nn.parallel.DistributedDataParallel(net, static_graph=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for i in range(3):
        optimizer.zero_grad(set_to_none=True)
        model(batch(rank, i), "reused").pow(2).mean().backward()
        optimizer.step()
    return gradients(net) + weights(net)


def no_sync(rank):
    net = Net()
    model = nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
    with model.no_sync():
        model(batch(rank, 0)).pow(2).mean().backward()
    model(batch(rank, 1)).pow(2).mean().backward()
    return gradients(net)


def join(rank, initial):
    net = Net()
    model = nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with model.join(divide_by_initial_world_size=initial):
        for i in range(2 + 2 * rank):
            optimizer.zero_grad(set_to_none=True)
            model(batch(rank, i)).pow(2).mean().backward()
            optimizer.step()
    return weights(net)


def join_throws(rank):
    model = nn.parallel.DistributedDataParallel(Net(), find_unused_parameters=True)
    done = 0
    try:
        with model.join(throw_on_early_termination=True):
            for i in range(2 + 2 * rank):
                model(batch(rank, i)).pow(2).mean().backward()
                done += 1
    except RuntimeError:
        return [done]
    return [-1]


def buffers(rank, broadcast):
    net = Net()
    model = nn.parallel.DistributedDataParallel(net, find_unused_parameters=True, broadcast_buffers=broadcast)
    all = []
    for i in range(3):
        model(batch(rank, i), "norm").pow(3).mean().backward()
        all += net.norm.running_mean.tolist() + net.norm.running_var.tolist()
    return all + [float(net.norm.num_batches_tracked)]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with open(f"{sys.argv[1]}.{rank}", "w") as out:
        for name, run in [("unused", unused), ("static_graph", static_graph), ("no_sync", no_sync),
                          ("join_initial", lambda r: join(r, True)), ("join_present", lambda r: join(r, False)),
                          ("join_throws", join_throws), ("buffers", lambda r: buffers(r, True)),
                          ("own_buffers", lambda r: buffers(r, False))]:
            print(name, *(f"{value:.17g}" for value in run(rank)), file=out)
            dist.barrier()


main()

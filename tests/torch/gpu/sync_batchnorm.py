#!/usr/bin/env python3
"""PyTorch's own SyncBatchNorm over the batches that `gpu_actor norms FOLDER` has left, on the same GPU.

A worker of `lockstep run`, as many as the actor had. Compares outputs, gradients of inputs, weights and biases, and the
running statistics; says how far they are apart, relative to their norm, and fails if that is more than rounding.
"""
import os
import pathlib
import sys

import numpy
import torch
import torch.distributed as dist

folder, rank = pathlib.Path(sys.argv[1]), int(os.environ["RANK"])


def left(kind, name, shape=(-1,)):
    values = numpy.fromfile(folder / f"{kind}.{rank}.{name}", dtype=numpy.float32)
    return torch.from_numpy(values).reshape(shape).cuda()


dist.init_process_group("gloo")
worst = {}
for kind, most in (("float32", 1e-6), ("bfloat16", 5e-3)):
    dtype = getattr(torch, kind)
    layer = torch.nn.SyncBatchNorm(4).cuda()
    x = left(kind, "input", (-1, 4, 5, 5)).to(dtype).requires_grad_()
    output = layer(x)
    (output * left(kind, "factors", (-1, 4, 5, 5)).to(dtype)).sum().backward()
    theirs = {"output": output, "of_input": x.grad, "of_weight": layer.weight.grad, "of_bias": layer.bias.grad,
              "mean": layer.running_mean, "variance": layer.running_var}
    for name, tensor in theirs.items():
        ours, tensor = left(kind, name), tensor.detach().float().flatten()
        worst[kind] = max(worst.get(kind, 0), float((ours - tensor).norm() / tensor.norm()))
    assert worst[kind] <= most, f"{kind}: {worst[kind]:.1e} apart from PyTorch's, {most:.0e} allowed"
print("apart from PyTorch's: " + ", ".join(f"{kind} {apart:.1e}" for kind, apart in worst.items()))

"""The models of `lockstep train` in PyTorch, by the same names, without dropout; what `lockstep bench step` feeds
them; and how it reads their times. Knows nothing of Lockstep.
"""
import json
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

TIMES_OF_A_LINE = 4096


class Mlp(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        widths = [inputs, 2048, 2048, 2048, classes]
        layers = []
        for i in range(4):
            layers += [nn.Linear(widths[i], widths[i + 1]), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x):
        return self.layers(x.flatten(1))


class Cnn(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(64)
        self.hidden = nn.Linear(features, 128)
        self.output = nn.Linear(128, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.output(F.relu(self.hidden(x.flatten(1))))


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + (self.shortcut(x) if self.shortcut else x))


class ResNet18(nn.Module):
    """As for ImageNet, with a first layer for 32×32 images."""

    def __init__(self, classes):
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(64)
        widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
        for i in range(8):
            setattr(self, f"block{i}", BasicBlock(widths[i], widths[i + 1], 1 if widths[i] == widths[i + 1] else 2))
        self.output = nn.Linear(512, classes)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x)))
        for i in range(8):
            x = getattr(self, f"block{i}")(x)
        return self.output(F.adaptive_avg_pool2d(x, (1, 1)).flatten(1))


def attention(q, k, v, future):
    """Causal; on a GPU by the operator that has kernels for it."""
    if future is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    weights = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
    return weights.masked_fill(future, -math.inf).softmax(-1) @ v


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.attend = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x, future):
        batch, length, width = x.shape
        q, k, v = self.attend(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        x = x + self.project(attention(q, k, v, future).transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Its output layer is the token embedding."""

    SIZES = {"tiny": (2, 64, 2), "small": (4, 128, 4), "medium": (6, 384, 6), "gpt2": (12, 768, 12)}

    def __init__(self, vocabulary, context, size="tiny"):
        super().__init__()
        self.layers, width, heads = self.SIZES[size]
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        for i in range(self.layers):
            setattr(self, f"block{i}", Block(width, heads))
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        length = x.shape[1]
        future = None if x.is_cuda else torch.ones(length, length, dtype=torch.bool).triu(1)
        y = self.tokens(x) + self.places(torch.arange(length, device=x.device))
        for i in range(self.layers):
            y = getattr(self, f"block{i}")(y, future)
        return F.linear(self.norm(y), self.tokens.weight)


def vocabulary_of(size):
    """Of the text that `bench step` makes up; job.cpp has the same."""
    return 50304 if size == "gpt2" else 65


def make_model(name, size, context):
    if name == "gpt":
        return Gpt(vocabulary_of(size), context, size)
    return {"mlp": lambda: Mlp(784, 10), "cnn": lambda: Cnn(64 * 7 * 7, 10), "resnet18": lambda: ResNet18(10)}[name]()


def bucket_option(bucket_bytes):
    """DDP's own default is left to it: said aloud, it takes another size for the first bucket."""
    return {} if int(bucket_bytes) == 25 << 20 else {"bucket_cap_mb": int(bucket_bytes) / 2**20}


def print_times(rank, times, **facts):
    """As time_lines.h has it: on lines that the launcher does not cut, the facts on the first of them."""
    for begin in range(0, max(len(times), 1), TIMES_OF_A_LINE):
        part = [round(ms, 4) for ms in times[begin:begin + TIMES_OF_A_LINE]]
        print(json.dumps({"rank": rank, **(facts if begin == 0 else {}), "step_ms": part}), flush=True)


def make_batch(name, samples, size, context):
    """Random samples, and what they should become."""
    if name == "gpt":
        return tuple(torch.randint(vocabulary_of(size), (samples, context)) for _ in range(2))
    shape = {"mlp": (784,), "cnn": (1, 28, 28), "resnet18": (3, 32, 32)}[name]
    return torch.randn(samples, *shape), torch.randint(10, (samples,))

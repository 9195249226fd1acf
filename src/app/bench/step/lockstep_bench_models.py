"""The models of `lockstep train` in PyTorch, by the same names, without dropout. Knows nothing of Lockstep."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


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
        weights = (q @ k.transpose(-2, -1)) / math.sqrt(width // self.heads)
        weights = weights.masked_fill(future, -math.inf).softmax(-1)
        x = x + self.project((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Of size tiny."""

    def __init__(self, vocabulary, context, width=64):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.block0 = Block(width, 2)
        self.block1 = Block(width, 2)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        length = x.shape[1]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        y = self.tokens(x) + self.places(torch.arange(length))
        y = self.block1(self.block0(y, future), future)
        return F.linear(self.norm(y), self.tokens.weight)

"""One worker of PyTorch's DistributedDataParallel over Gloo, on the models of `lockstep train`.

    ddp_reference.py MODEL OPTIMIZER LR ACCUMULATE INPUTS OUTPUT

INPUTS (safetensors) has the initial values as model.*, all samples as data and target, and as indices[step][shard]
the samples of each micro-batch. Writes the final values to OUTPUT. Knows nothing of Lockstep.
"""
import json
import math
import struct
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

DTYPES = {"F32": torch.float32, "I64": torch.int64, "F64": torch.float64}


def load(path):
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = bytearray(file.read())
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            values = torch.frombuffer(data[begin:end], dtype=DTYPES[entry["dtype"]]) if end > begin else torch.empty(0)
            tensors[name] = values.reshape(entry["shape"]).clone()
    return tensors


def save(tensors, path):
    names = {dtype: name for name, dtype in DTYPES.items()}
    header, parts, offset = {}, [], 0
    for name, tensor in sorted(tensors.items()):
        part = tensor.detach().contiguous().numpy().tobytes()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + len(part)]}
        parts.append(part)
        offset += len(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


class Mlp(nn.Module):
    def __init__(self, values):
        super().__init__()
        widths = [values["model.layers.0.weight"].shape[1], 2048, 2048, 2048, values["model.layers.6.weight"].shape[0]]
        layers = []
        for i in range(4):
            layers += [nn.Linear(widths[i], widths[i + 1]), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x):
        return self.layers(x.flatten(1))


class Cnn(nn.Module):
    def __init__(self, values):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(64)
        self.hidden = nn.Linear(values["model.hidden.weight"].shape[1], 128)
        self.output = nn.Linear(128, values["model.output.weight"].shape[0])

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
    def __init__(self, values):
        super().__init__()
        vocabulary, width = values["model.tokens.weight"].shape
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(values["model.places.weight"].shape[0], width)
        self.block0 = Block(width, 2)
        self.block1 = Block(width, 2)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        length = x.shape[1]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        y = self.tokens(x) + self.places(torch.arange(length))
        y = self.block1(self.block0(y, future), future)
        return F.linear(self.norm(y), self.tokens.weight)


def main():
    name, optimizer_name, lr, accumulate, inputs, output = sys.argv[1:]
    lr, accumulate = float(lr), int(accumulate)
    torch.set_num_threads(1)
    if not torch.backends.mkldnn.is_available() or "aarch64" in __import__("platform").machine():
        torch._C._set_mkldnn_enabled(False)  # as `lockstep train` has it there
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    values = load(inputs)
    net = {"mlp": Mlp, "cnn": Cnn, "gpt": Gpt}[name](values)
    net.load_state_dict({key[6:]: value for key, value in values.items() if key.startswith("model.")})
    model = nn.parallel.DistributedDataParallel(net)
    if optimizer_name == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
    for step in values["indices"]:
        optimizer.zero_grad()
        for i in range(accumulate):
            chosen = step[rank * accumulate + i]

            def run():
                logits = model(values["data"][chosen])
                loss = F.cross_entropy(logits.flatten(0, -2), values["target"][chosen].flatten())
                (loss / accumulate).backward()

            if i + 1 < accumulate:
                with model.no_sync():
                    run()
            else:
                run()
        optimizer.step()
    if rank == 0:
        save(net.state_dict(), output)
    dist.barrier()


main()

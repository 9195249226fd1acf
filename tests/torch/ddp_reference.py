"""One worker of PyTorch's DistributedDataParallel over Gloo, on the models of `lockstep train`.

    ddp_reference.py MODEL OPTIMIZER LR ACCUMULATE INPUTS OUTPUT [HOOK]

INPUTS (safetensors) has the initial values as model.*, all samples as data and target, and as indices[step][shard]
the samples of each micro-batch. Writes the final values to OUTPUT. HOOK: fp16 or power-sgd:RANK:FROM, PyTorch's
communication hooks; the factors of the latter begin with the numbers of Lockstep. Knows nothing else of Lockstep.
"""
import json
import pathlib
import struct
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "src/bench/step"))
sys.dont_write_bytecode = True
from lockstep_bench_models import Cnn, Gpt, Mlp  # noqa: E402

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


def number_at(row, column):
    x = ((column << 32) + row + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return ((x ^ (x >> 31)) >> 40) * 2.0**-23 - 1


def power_sgd_hook(state, bucket):
    """PyTorch's, whose factors begin with known numbers. It has the factors of one shape one after the other."""
    if state.iter >= state.start_powerSGD_iter and bucket.index() not in state.p_memory_dict:
        rank, p_length, qs = state.matrix_approximation_rank, 0, {}
        for gradient in bucket.gradients():
            rows, columns = gradient.view(gradient.shape[0], -1).shape
            if (rows + columns) * rank * state.min_compression_rate < rows * columns:
                p_length += rows * rank
                of_shape = qs.setdefault((rows, columns), [])
                of_shape += [number_at(row, column) for row in range(columns) for column in range(rank)]
        state.p_memory_dict[bucket.index()] = torch.zeros(p_length)
        state.q_memory_dict[bucket.index()] = torch.tensor(sum(qs.values(), []), dtype=torch.float32)
    return powerSGD_hook.powerSGD_hook(state, bucket)


def one_bucket(net):
    """Two buckets would run three sums each at the same time, and over Gloo they mix them up."""
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 30
    return nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1024)


MODELS = {
    "mlp": lambda values: Mlp(values["model.layers.0.weight"].shape[1], values["model.layers.6.weight"].shape[0]),
    "cnn": lambda values: Cnn(values["model.hidden.weight"].shape[1], values["model.output.weight"].shape[0]),
    "gpt": lambda values: Gpt(values["model.tokens.weight"].shape[0], values["model.places.weight"].shape[0]),
}


def main():
    name, optimizer_name, lr, accumulate, inputs, output = sys.argv[1:7]
    lr, accumulate = float(lr), int(accumulate)
    torch.set_num_threads(1)
    if not torch.backends.mkldnn.is_available() or "aarch64" in __import__("platform").machine():
        torch._C._set_mkldnn_enabled(False)  # as `lockstep train` has it there
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    values = load(inputs)
    net = MODELS[name](values)
    net.load_state_dict({key[6:]: value for key, value in values.items() if key.startswith("model.")})
    model = one_bucket(net) if "power-sgd" in sys.argv[-1] else nn.parallel.DistributedDataParallel(net)
    if sys.argv[7:] == ["fp16"]:
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif sys.argv[7:]:
        columns, begin = map(int, sys.argv[7].split(":")[1:])
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=columns, start_powerSGD_iter=begin)
        model.register_comm_hook(state, power_sgd_hook)
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

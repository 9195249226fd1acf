#!/usr/bin/env python3
"""Holds the layers: arrows point down only, engines do not know each other, LibTorch stays in torch/ and above; and
neither files nor folders include each other in a circle.

    check_layers.py [ROOT]        prints every include that breaks a rule, and fails if there is one
    check_layers.py --self-test   shows that each rule can fail
"""
import pathlib
import re
import sys
import tempfile

# From the bottom up. A folder may include its own and lower layers.
LAYERS = ["base", "formats", "plan", "flat", "comm", "control", "torch", "bench", "app"]
# Where the implementation of each public header lives.
PUBLIC = {
    "errors.h": "base", "deadline.h": "base", "schedule.h": "plan", "noise_scale.h": "plan", "local_steps.h": "plan", "codec.h": "flat",
    "buffer.h": "comm", "work.h": "comm", "bootstrap.h": "comm", "comm.h": "comm", "arena.h": "comm",
    "world.h": "control", "uneven_inputs.h": "control", "faults.h": "control",
    "activation_checkpoint.h": "torch", "autocast.h": "torch", "data_parallel.h": "torch", "grad_scaler.h": "torch", "optim.h": "torch", "data.h": "torch", "dataset.h": "torch", "metrics.h": "torch",
    "tensors.h": "torch",
    "job.h": "torch", "step.h": "torch", "stream.h": "torch", "sync_batchnorm.h": "torch", "trainer.h": "torch", "checkpoint.h": "torch",
    "lockstep.h": "app",
}
# Plain data and constants, for everybody above base.
PLAIN_DATA = {"buffer.h"}
# Folders of comm/, from the bottom up; engines stand side by side.
COMM_ORDER = {"arena": 0, "core": 0, "algorithms": 1, "thread": 1, "shm": 1, "tcp": 1, "mpi": 1, "nccl": 1, "": 2}
# The same of torch/.
TORCH_ORDER = {"device": 0, "divergence": 0, "data": 1, "models": 1, "replica": 1, "optim": 2, "step": 3, "train": 4}
ENGINES = {"thread", "shm", "tcp", "mpi", "nccl"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]')
LIBTORCH = re.compile(r"^(torch|ATen|c10)/")


def layer_of(path, root):
    parts = path.relative_to(root).parts
    if parts[0] == "src":
        return parts[1], parts[2] if len(parts) > 3 else ""
    return PUBLIC.get(parts[-1]), ""


def wrong_include(layer, folder, target, ours):
    """Why a file of (layer, folder) may not include target, a file of ours or of others; None if it may."""
    if LIBTORCH.match(target) and not ours:
        return "LibTorch below torch/" if LAYERS.index(layer) < LAYERS.index("torch") else None
    parts = target.split("/")
    if parts[0] == "lockstep":
        if parts[-1] not in PUBLIC:
            return "a public header without a layer in tools/check_layers.py"
        if parts[-1] in PLAIN_DATA and layer != "base":
            return None
        target_layer, target_folder = PUBLIC[parts[-1]], None
    elif parts[0] in LAYERS:
        target_layer, target_folder = parts[0], parts[1] if len(parts) > 2 else ""
    else:
        return None
    if LAYERS.index(target_layer) > LAYERS.index(layer):
        return f"upward: {layer}/ includes {target_layer}/"
    if target_layer == "formats" != layer and LAYERS.index(layer) < LAYERS.index("torch"):
        return f"{layer}/ includes formats/, which stands beside it"
    if layer == target_layer == "comm" and target_folder is not None:
        if folder in ENGINES and target_folder in ENGINES and folder != target_folder:
            return f"engine {folder} includes engine {target_folder}"
        if COMM_ORDER.get(folder, 2) < COMM_ORDER.get(target_folder, 2):
            return f"upward: comm/{folder} includes comm/{target_folder}"
    if layer == target_layer == "torch" and target_folder is not None:
        if TORCH_ORDER.get(folder, 4) < TORCH_ORDER.get(target_folder, 4):
            return f"upward: torch/{folder} includes torch/{target_folder}"
    return None


def includes_of(files, root):
    """Which of `files` each of them includes, by name from the root."""
    graph = {}
    for path in files:
        targets = [match.group(1) for match in map(INCLUDE.match, path.read_text().splitlines()) if match]
        found = (f"{top}/{target}" for target in targets for top in ("src", "include"))
        graph[str(path.relative_to(root))] = sorted({each for each in found if (root / each).is_file()})
    return graph


def folders_of(files_graph):
    """The same between folders of src/."""
    def folder(name):
        return str(pathlib.PurePath(name).parent.relative_to("src"))
    graph = {}
    for name, targets in files_graph.items():
        if name.startswith("src/"):
            graph.setdefault(folder(name), set()).update(folder(each) for each in targets if each.startswith("src/"))
    return {above: sorted(belows - {above}) for above, belows in graph.items()}


def circles(graph):
    """A way around for every arrow that closes a circle."""
    found, done, way = [], set(), []

    def walk(node):
        if node in way:
            found.append(way[way.index(node):] + [node])
        elif node not in done:
            way.append(node)
            for each in graph.get(node, []):
                walk(each)
            way.pop()
            done.add(node)

    for node in sorted(graph):
        walk(node)
    return found


def check_circles(files, root):
    graph = includes_of(files, root)
    return ([f"a circle of files: {' -> '.join(each)}" for each in circles(graph)] +
            [f"a circle of folders: {' -> '.join(each)}" for each in circles(folders_of(graph))])


def check(root):
    problems = []
    files = [p for p in sorted(root.glob("src/**/*")) + sorted(root.glob("include/lockstep/*.h"))
             if p.suffix in {".h", ".cpp", ".cu"}]
    for path in files:
        layer, folder = layer_of(path, root)
        if layer not in LAYERS:
            problems.append(f"{path.relative_to(root)}: belongs to no layer")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            target = match.group(1) if match else ""
            reason = wrong_include(layer, folder, target, (root / "src" / target).is_file()) if match else None
            if reason:
                problems.append(f"{path.relative_to(root)}:{number}: {reason} ({target})")
    return problems + check_circles(files, root)


def self_test():
    bad = {
        "src/plan/a.cpp": '#include "comm/channel.h"',
        "src/base/b.h": "#include <lockstep/comm.h>",
        "src/comm/tcp/c.cpp": '#include "comm/thread/thread_engine.h"',
        "src/comm/core/d.h": '#include "comm/channel.h"',
        "src/control/e.cpp": "#include <torch/torch.h>",
        "src/nowhere/f.cpp": "",
        "src/flat/i.h": "#include <torch/torch.h>",
        "src/flat/j.cpp": '#include "comm/channel.h"',
        "src/formats/n.cpp": '#include "plan/tree.h"',
        "src/bench/o.cpp": '#include "app/help.h"',
        "src/plan/p.cpp": '#include "formats/csv.h"',
        "src/torch/step/m.cpp": '#include "torch/train/results.h"',
    }
    good = {"src/control/g.cpp": '#include "plan/tree.h"', "src/torch/h.cpp": "#include <ATen/ATen.h>",
            "src/flat/k.cpp": '#include "flat/k.h"', "src/formats/l.h": "#include <lockstep/errors.h>"}
    # Files that are there besides.
    others = {
        "src/torch/train/results.h": "", "src/flat/k.h": "",
        "src/plan/x.h": '#include "plan/y.h"', "src/app/doctor/x.h": '#include "app/train/z.h"',
        "src/app/train/z.h": "",
    }
    bad["src/plan/y.h"] = '#include "plan/x.h"'
    bad["src/plan/x.h"] = '#include "plan/x.h"'
    bad["src/app/train/y.cpp"] = '#include "app/doctor/x.h"'
    good["src/app/train/w.cpp"] = '#include "app/train/z.h"'
    for name, text in {**bad, **good}.items():
        with tempfile.TemporaryDirectory() as folder:
            for each, its_text in {**others, name: text + "\n"}.items():
                path = pathlib.Path(folder, each)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(its_text)
            if bool(check(pathlib.Path(folder))) != (name in bad):
                sys.exit(f"check_layers.py: wrong verdict on {name}: {text}")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    problems = check(root)
    print("\n".join(problems))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()

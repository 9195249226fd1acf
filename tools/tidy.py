#!/usr/bin/env python3
"""clang-tidy, with clang's -Wthread-safety, over what the build compiles of src/, tests left out; folders that are compiled
as one file are looked at as one file.

    tidy.py [--below-torch | --torch] [PATTERN]     only what sees LibTorch, or only what does not;
                                                    only files whose path, or whose folder's, contains PATTERN
"""
import json
import os
import pathlib
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Clang's own warnings about pragmas that it does not know, and about flags of GCC.
QUIET = ["--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Wno-ignored-optimization-argument"]
# What a lock guards (base/mutex.h): the builds hold it only where clang compiles.
LOCKS = ["--extra-arg=-Wthread-safety", "--extra-arg=-Werror=thread-safety"]


def files(which, pattern):
    """What to look at, and whether it sees LibTorch."""
    for entry in json.loads((ROOT / "build/compile_commands.json").read_text()):
        path = os.path.relpath(entry["file"], ROOT)
        torch = "torch/csrc" in entry["command"]
        if path.endswith(".cu"):
            continue  # clang-tidy 14 knows no CUDA of today
        ours = path.startswith("src/") or (path.startswith("build/src/") and "Unity" in path)
        tests = path.endswith("_test.cpp") or "_test.dir" in path
        if ours and not tests and pattern in path and which in ("all", "torch" if torch else "below"):
            yield str(ROOT / path), torch


def tidy(job):
    path, torch = job
    # A folder compiled as one file includes its parts, on purpose. A tensor is a handle: a const one that is returned costs
    # a count, and const says more.
    off = ["-bugprone-suspicious-include"] * ("Unity" in path) + ["-performance-no-automatic-move"] * torch
    checks = [f"--checks={','.join(off)}"] if off else []
    first = [f"--extra-arg=-include{ROOT / 'tools/tidy_libtorch.h'}"] if torch else []
    began = time.monotonic()
    run = subprocess.run(["clang-tidy-14", "--quiet", "-p", str(ROOT / "build"), *QUIET, *LOCKS, *first, *checks, path],
                         capture_output=True, text=True)
    return path, time.monotonic() - began, run.returncode, run.stdout


def main():
    words = sys.argv[1:]
    which = {"--torch": "torch", "--below-torch": "below"}.get(words[0] if words else "", "all")
    pattern = words[-1] if words and not words[-1].startswith("--") else ""
    chosen = sorted(set(files(which, pattern)))
    failed = False
    with ThreadPoolExecutor(int(os.environ.get("JOBS", os.cpu_count()))) as pool:
        for path, seconds, code, output in pool.map(tidy, chosen):
            print(f"{os.path.relpath(path, ROOT)}: {seconds:.0f} s\n{output}", end="", flush=True)
            failed = failed or code != 0
    print(f"clang-tidy: {len(chosen)} files, {'findings above' if failed else 'clean'}")
    sys.exit(failed)


main()

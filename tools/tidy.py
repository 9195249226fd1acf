#!/usr/bin/env python3
"""clang-tidy over what the build compiles of src/, tests left out; folders that are compiled as one file are looked at
as one file.

    tidy.py [PATTERN]     only files whose path, or whose folder's, contains PATTERN
"""
import json
import os
import pathlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent


def files(pattern):
    for entry in json.loads((ROOT / "build/compile_commands.json").read_text()):
        path = os.path.relpath(entry["file"], ROOT)
        if path.endswith(".cu"):
            continue  # clang-tidy 14 knows no CUDA of today
        if "torch/csrc" in entry["command"]:
            continue  # clang 14 does not compile LibTorch 1.13's headers as C++20 with GCC 12's library
        ours = path.startswith("src/") or (path.startswith("build/src/") and "Unity" in path)
        if ours and not path.endswith("_test.cpp") and "_test.dir" not in path and pattern in path:
            yield str(ROOT / path)


def tidy(path):
    # A folder compiled as one file includes its parts, on purpose.
    checks = ["--checks=-bugprone-suspicious-include"] if "Unity" in path else []
    run = subprocess.run(["clang-tidy-14", "--quiet", "-p", str(ROOT / "build"), *checks, path],
                         capture_output=True, text=True)
    return run.returncode, run.stdout


def main():
    chosen = sorted(set(files(sys.argv[1] if len(sys.argv) > 1 else "")))
    failed = False
    with ThreadPoolExecutor(int(os.environ.get("JOBS", os.cpu_count()))) as pool:
        for code, output in pool.map(tidy, chosen):
            print(output, end="", flush=True)
            failed = failed or code != 0
    print(f"clang-tidy: {len(chosen)} files, {'findings above' if failed else 'clean'}")
    sys.exit(failed)


main()

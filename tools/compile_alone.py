#!/usr/bin/env python3
"""Checks that every C++ file of a build tree compiles alone: elsewhere folders are compiled as one, which hides what a file
forgot to include. No code is generated, which takes half of the time.

  compile_alone.py BUILD      with the commands of BUILD/compile_commands.json, JOBS at a time
"""
import concurrent.futures
import json
import os
import shlex
import subprocess
import sys


def alone(entry):
    """The command of an entry, without an output."""
    words = shlex.split(entry["command"])
    output = words.index("-o")
    return words[:output] + words[output + 2 :] + ["-fsyntax-only"]


def main():
    with open(os.path.join(sys.argv[1], "compile_commands.json"), encoding="utf-8") as file:
        entries = [entry for entry in json.load(file) if entry["file"].endswith(".cpp")]

    def run(entry):
        result = subprocess.run(alone(entry), cwd=entry["directory"], capture_output=True, text=True, check=False)
        return entry["file"], result.returncode, result.stderr

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", os.cpu_count()))) as pool:
        for name, code, said in pool.map(run, entries):
            sys.stderr.write(said)
            if code != 0:
                failed += 1
                print(f"{name} does not compile alone", file=sys.stderr)
    print(f"{len(entries)} files, {failed} of them failed")
    return 1 if failed or not entries else 0


if __name__ == "__main__":
    sys.exit(main())

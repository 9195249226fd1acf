#!/usr/bin/env python3
"""Holds the guides to their commands: each is run by a test, or the guide says why not.

    check_guides.py [ROOT]          prints every block of commands in docs/guide/ that has no mark, and fails if there is one
    check_guides.py --run BUILD     runs those that are marked so, with the programs of BUILD
    check_guides.py --self-test     shows that the check can fail

A block of commands is indented by four spaces, or fenced without a language or as `sh`. C++ is none: a line of it ends
in ';' or '{'. The mark is a comment before the block, which readers do not see:

    <!-- run -->                      by --run; `run on 2 hosts`: twice at once, with NODE=0 and NODE=1
    <!-- test Suite.Name -->          that test runs it
    <!-- not run: no GPU here -->
    <!-- no command -->               text or another language

A mark of `run` may have more lines: `needs PROGRAM` skips the block where there is none, `for A take B` replaces text,
such as hours by seconds. ./train is a worker that joins and adds one number, node0 this host, ports are free ones.
"""
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

MARK = re.compile(r"<!--\s*(run( on 2 hosts)?|test (?P<test>\S+)|not run: \S.*|no command)\s*(\n(?P<more>.*?))?-->\s*\Z", re.S)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
INDENTED = re.compile(r"(?:(?<=\n\n)|\A)((?:    .*\n|\n(?=    ))+)")
PORTS = ["29400", "29411"]
LIMIT_S = 120


def is_cpp(text):
    return any(re.sub(r"\s*//.*", "", line).rstrip().endswith((";", "{")) for line in text.splitlines())


def blocks_of(guide):
    """(line, mark, text) of every block of commands; the mark is a match, or None."""
    text = guide.read_text()
    found = [(m.start(), m[2]) for m in FENCE.finditer(text) if m[1] in ("", "sh")]
    plain = FENCE.sub(lambda m: re.sub(r"[^\n]", "x", m[0]), text)
    found += [(m.start(), re.sub("^    ", "", m[1], flags=re.M)) for m in INDENTED.finditer(plain) if not is_cpp(m[1])]
    return [(text.count("\n", 0, at) + 1, MARK.search(last_comment(text[:at])), block) for at, block in sorted(found)]


def last_comment(text):
    at = text.rfind("<!--")
    return text[at:] if at >= 0 else ""


def has_test(root, name):
    suite, _, case = name.rpartition(".")
    pattern = re.compile(rf"\bTEST(_F|_P)?\({re.escape(suite.split('/')[-1])},\s*{re.escape(case)}\)")
    return any(pattern.search(p.read_text()) for p in root.glob("tests/**/*.cpp"))


def guides(root):
    return sorted((root / "docs/guide").glob("*.md"))


def check(root):
    problems = []
    for guide in guides(root):
        for line, mark, text in blocks_of(guide):
            where = f"{guide.relative_to(root)}:{line}"
            if mark is None:
                problems.append(f"{where}: nobody runs this, and no mark says why (see {sys.argv[0]}): {text.splitlines()[0]}")
            elif mark["test"] and not has_test(root, mark["test"]):
                problems.append(f"{where}: there is no test {mark['test']}")
    return problems


def free_port():
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return str(trial.getsockname()[1])


def script_of(mark, text):
    """What to run in place of the block; None, and the program that is missing, where it cannot."""
    for line in (mark["more"] or "").splitlines():
        needs = re.fullmatch(r"\s*needs (\S+)\s*", line)
        other = re.fullmatch(r"\s*for (.+) take (.+?)\s*", line)
        if needs and not shutil.which(needs[1]):
            return None, needs[1]
        if other:
            if other[1] not in text:
                raise SystemExit(f"the block has no '{other[1]}' to take something else for:\n{text}")
            text = text.replace(other[1], other[2])
    for port in PORTS:
        text = text.replace(port, free_port())
    return "set -e\n" + text.replace("node0", "127.0.0.1"), None


def run_block(script, nodes, folder, build):
    home = {**os.environ, "HOME": folder, "PATH": f"{build}:{os.environ['PATH']}"}
    started = [subprocess.Popen(["bash", "-c", script], cwd=folder, env={**home, "NODE": str(node)},
                                start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
               for node in range(nodes)]
    try:
        outputs = [process.communicate(timeout=LIMIT_S)[0] for process in started]
    except subprocess.TimeoutExpired:
        return False, f"it had not ended after {LIMIT_S} s\n"
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return all(process.returncode == 0 for process in started), "".join(outputs)


def run(root, build):
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        train = pathlib.Path(folder) / "train"
        train.write_text(f'#!/bin/sh\nexec "{build}/tests/launcher/launcher_join_actor"\n')
        train.chmod(0o755)
        for guide in guides(root):
            for line, mark, text in blocks_of(guide):
                if mark is None or not mark[1].startswith("run"):
                    continue
                where = f"{guide.relative_to(root)}:{line}"
                script, missing = script_of(mark, text)
                if missing:
                    print(f"skipped {where}: there is no {missing} here")
                    continue
                begun = time.monotonic()
                done, output = run_block(script, 2 if mark[2] else 1, folder, build)
                took = f" in {time.monotonic() - begun:.1f} s"
                print(f"{'ran' if done else 'FAILED'} {where}{took}" + ("" if done else f"\n{script}\n{output}"), flush=True)
                failed += not done
    return failed


def self_test():
    cases = {
        "\n    lockstep run -n 2 -- ./train\n": 1,
        "<!-- run -->\n\n    lockstep run -n 2 -- ./train\n": 0,
        "<!-- run on 2 hosts\n     needs torchrun -->\n\n    torchrun ./train\n": 0,
        "<!-- not run: -->\n\n    lockstep run -n 2 -- ./train\n": 1,
        "<!-- not run: no GPU here -->\n\n    lockstep run -n 2 -- ./train\n": 0,
        "<!-- run -->\n\n    true\n\nText.\n\n    false\n": 1,
        "<!-- test No.Such -->\n\n    true\n": 1,
        "<!-- test A.B -->\n\n    true\n": 0,
        "```sh\nlockstep doctor\n```\n": 1,
        "```cpp\nint x = 1;\n```\n": 0,
        "\n    auto world = lockstep::join();\n": 0,
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "docs/guide").mkdir(parents=True)
        (root / "tests").mkdir()
        (root / "tests/a.cpp").write_text("TEST_F(A, B) {}\n")
        for text, expected in cases.items():
            (root / "docs/guide/a.md").write_text("# A guide\n\n" + text)
            if len(check(root)) != expected:
                raise SystemExit(f"expected {expected} problems, found {check(root)} in:\n{text}")


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if sys.argv[1:2] == ["--run"]:
        sys.exit(run(root, pathlib.Path(sys.argv[2]).resolve()) != 0)
    problems = check(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root)
    print("\n".join(problems))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Holds the sizes of the house rules: no function over 60 lines, no file over 600, no public header over 250.

A function that must be longer says why in a comment above it that has the words "Long because".
"""
import pathlib
import subprocess
import sys

MOST_LINES = 60


def lines_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def functions(names):
    """(file, first line, name, lines) of every function, from ctags."""
    for row in lines_of("ctags", "--c++-kinds=f", "--fields=+ne", "-f", "-", *names):
        fields = row.split("\t")
        place = dict(field.split(":", 1) for field in fields[4:] if ":" in field)
        if "line" in place and "end" in place:
            first = int(place["line"])
            yield fields[1], first, fields[0], int(place["end"]) - first + 1


def main():
    names = [name for name in lines_of("git", "ls-files", "*.h", "*.cpp", "*.cu") if pathlib.Path(name).exists()]
    text = {name: pathlib.Path(name).read_text().splitlines() for name in names}
    problems = []
    for name, lines in text.items():
        most = 250 if name.startswith("include/") else 600
        if len(lines) > most:
            problems.append(f"{name}: {len(lines)} lines, more than {most}")
    for name, first, function, length in functions(names):
        excused = any("Long because" in line for line in text[name][max(0, first - 5):first - 1])
        if length > MOST_LINES and not excused:
            problems.append(f"{name}:{first}: {function} has {length} lines, more than {MOST_LINES}")
    print("".join(problem + "\n" for problem in problems), end="")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()

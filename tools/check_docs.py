#!/usr/bin/env python3
"""Holds the form of the documents: width, links, and that every page can be found.

    check_docs.py [ROOT]        prints every problem, and fails if there is one
    check_docs.py --self-test   shows that each rule can fail

Rules, for every Markdown file that git does not ignore, or that is in ROOT if that is no repository:

    width   a line of prose has at most 100 columns. Tables, code, headings and the targets of links may be longer, and so
            may a line of one word. Pages that a program writes (docs/benchmarks*.md) are as that program writes them
    links   a link to a file of the repository leads to a file, and one with #part to a heading of that page
    files   a file of the sources that a page names by its path is there (but in CHANGELOG.md, which is history)
    found   every page in docs/ can be reached by links from README.md; a link to a folder is one to its README.md
"""
import pathlib
import re
import subprocess
import sys
import tempfile

MOST_COLUMNS = 100
WRITTEN_BY_PROGRAMS = re.compile(r"docs/benchmarks[^/]*\.md")
LINK = re.compile(r"\]\(([^)\s]+)\)")
OUTSIDE = re.compile(r"[a-z]+:")
SOURCE = re.compile(r"`((?:src/)?(?:base|formats|plan|flat|comm|control|torch|bench|app)/[\w/]+\.(?:h|cpp|cu))`")


def pages_of(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], capture_output=True, text=True)
    names = listed.stdout.splitlines() or [str(p.relative_to(root)) for p in root.rglob("*.md")]
    return {name: (root / name).read_text() for name in sorted(names) if (root / name).exists()}


def prose(text):
    """(number, line) of every line that is neither code nor comment."""
    fenced = commented = False
    before_is_code, before_is_empty, in_list = False, True, False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not commented and line.lstrip().startswith("<!--"):
            commented = "-->" not in line
        elif commented:
            commented = "-->" not in line
        elif not fenced:
            if line.strip() and not line.startswith(" "):
                in_list = bool(re.match(r"([-*+]|\d+\.) ", line))
            code = line.startswith("    ") and not in_list and (before_is_code or before_is_empty)
            if line.strip():
                before_is_code = code
            before_is_empty = not line.strip()
            if not code:
                yield number, line


def too_wide(line):
    if line.startswith(("|", "#")) or len(line.split()) <= 1:
        return False
    return len(LINK.sub("]", line)) > MOST_COLUMNS


def heading_parts(text):
    """The #parts that GitHub gives to the headings of a page."""
    for _, line in prose(text):
        if line.startswith("#"):
            heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip()).lower()
            yield re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")


def links_of(text):
    for number, line in prose(text):
        for target in LINK.findall(re.sub(r"`[^`]*`", "``", line)):
            if not OUTSIDE.match(target):
                yield number, target


def target_of(root, name, target):
    """The file that a link on the page `name` leads to, from ROOT, and its #part."""
    file, _, part = target.partition("#")
    path = (root / name).parent / file if file else root / name
    if path.is_dir() and (path / "README.md").exists():
        path = path / "README.md"
    try:
        return path, str(path.resolve().relative_to(root.resolve())), part
    except ValueError:
        return path, None, part


def check_links(root, pages, name):
    for number, target in links_of(pages[name]):
        path, inside, part = target_of(root, name, target)
        if inside is None or not path.exists():
            yield f"{name}:{number}: there is no {target}"
        elif part and inside in pages and part not in heading_parts(pages[inside]):
            yield f"{name}:{number}: {inside} has no heading #{part}"


def check_sources(root, name, text):
    for number, line in prose(text):
        for path in SOURCE.findall(line):
            if not (root / "src" / path.removeprefix("src/")).exists():
                yield f"{name}:{number}: there is no {path}"


def reached(root, pages):
    found, waiting = set(), ["README.md"]
    while waiting:
        name = waiting.pop()
        if name in found or name not in pages:
            continue
        found.add(name)
        waiting += [target_of(root, name, target)[1] for _, target in links_of(pages[name])]
    return found


def check(root):
    pages = pages_of(root)
    problems = []
    for name, text in pages.items():
        if not WRITTEN_BY_PROGRAMS.fullmatch(name):
            problems += [f"{name}:{number}: {len(line)} columns, more than {MOST_COLUMNS}"
                         for number, line in prose(text) if too_wide(line)]
        problems += check_links(root, pages, name)
        if name != "CHANGELOG.md":
            problems += check_sources(root, name, text)
    problems += [f"{name}: no link leads here from README.md"
                 for name in sorted(set(pages) - reached(root, pages)) if name.startswith("docs/")]
    return problems


def self_test():
    wide = "word " * 20 + "end"
    cases = {  # what is added to README.md, or to a page: how many problems
        ("README.md", wide): 1,
        ("README.md", wide[:100]): 0,
        ("README.md", "| " + wide + " |"): 0,
        ("README.md", "x" * 200): 0,
        ("README.md", f"[{'x' * 60}](docs/a.md) [y](https://example.org/{'z' * 60}) end"): 0,
        ("README.md", "```\n" + wide + "\n```"): 0,
        ("README.md", "    " + wide): 0,
        ("README.md", "- one\n\n    " + wide): 1,
        ("README.md", "text\n    " + wide): 1,
        ("docs/benchmarks-x.md", wide): 1,  # found by nobody, but not too wide
        ("README.md", "[b](docs/b.md)"): 1,
        ("README.md", "[above](../other.md)"): 1,
        ("README.md", "[part](docs/a.md#the-one-part)"): 0,
        ("README.md", "[part](docs/a.md#another-part)"): 1,
        ("README.md", "`[b](docs/b.md)`"): 0,
        ("README.md", "`src/plan/gone.h` and `plan/gone.cpp`"): 2,
        ("README.md", "`src/plan/here.h` and `plan/here.h`"): 0,
        ("docs/lost.md", "A page."): 1,
        ("docs/more/README.md", "A page."): 1,
        ("docs/a.md", "[more](more)"): 1,
    }
    for (name, text), expected in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs").mkdir()
            (root / "src/plan").mkdir(parents=True)
            (root / "src/plan/here.h").touch()
            (root / "README.md").write_text("# Read me\n\n[a](docs/a.md)\n\n")
            (root / "docs/a.md").write_text("# A page\n\n## The *one* part\n\n")
            (root / name).parent.mkdir(exist_ok=True)
            with (root / name).open("a") as page:
                page.write(text + "\n")
            if len(check(root)) != expected:
                raise SystemExit(f"expected {expected} problems, found {check(root)} with, in {name}:\n{text}")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    problems = check(root)
    print("".join(problem + "\n" for problem in problems), end="")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Keeps classes from collecting modes: at most 12 data members, and no test of the device outside files named for it.

    check_classes.py [ROOT]        prints every class and line that breaks a rule, and fails if there is one
    check_classes.py --self-test   shows that each rule can fail

Members. A class or struct has at most 12 data members of its own: nested classes count for themselves, static members do
not count. Two kinds are plain data, where a long list hides no modes, and may be longer:

    options   its name ends in Options
    record    a struct whose members are all public, and which has no function that changes it: constructors, operators,
              static and const functions only, and no destructor

Devices. Whether memory is a GPU's is asked in a few files, whose names say so; the others call what those offer. A test is
a comparison with DeviceKind, is_cuda(), is_cpu() or on_device.
"""
import collections
import pathlib
import re
import subprocess
import sys
import tempfile

MOST_MEMBERS = 12
# The files that may ask; buffer.h defines Device.
NAMED = re.compile(r"^src/(torch/device|flat|comm/nccl)/|^include/lockstep/buffer\.h$|\.cu$|"
                   r"(device|cuda|gpu|gather)[^/]*$")
DEVICE_TEST = re.compile(r"[!=]=\s*DeviceKind::|DeviceKind::\w+\s*[!=]=|\bcase\s+DeviceKind::|\bis_(cuda|cpu)\(|"
                         r"\bon_device\(|(?<![.>\w:])on_device_?\b(?!\s*([.;(]|->|=(?!=)))")


def tags(root, files):
    """What ctags finds in them: dictionaries with name, path, kind, scope, access, signature, properties, line."""
    command = ["ctags", "--c++-kinds=cfmps", "--fields=aKnsSZe", "--fields-C++=+{properties}", "--language-force=C++",
               "--excmd=number", "--sort=no", "-f", "-", *files]
    for row in subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines():
        name, path, _, kind, *rest = row.split("\t")
        tag = dict(field.split(":", 1) for field in rest)
        # "class:lockstep::__anon1234::Name"; functions without a class have none
        tag["scope"] = re.sub(r"(^|::)__anon\w+", "", tag.get("scope", "").split(":", 1)[-1]).removeprefix("::")
        yield {**tag, "name": name, "path": path, "kind": kind}


def changes(function, owner):
    """Whether a member function makes its struct more than a record."""
    name, properties = function["name"], function.get("properties", "").split(",")
    if name.startswith("~"):
        return True
    is_const = re.search(r"\)\s*const\b", function.get("signature", "")) or "const" in properties
    return not (name == owner.rsplit("::", 1)[-1] or name.startswith("operator") or "static" in properties or is_const)


def large_classes(root, files):
    """{(file, class): members} of those that are neither options nor records and have too many."""
    kinds, members = {}, collections.defaultdict(list)
    not_records = set()
    for tag in tags(root, files):
        key = (tag["path"], tag["scope"])
        if tag["kind"] in ("class", "struct"):
            name = re.sub(r"__anon\w+::", "", tag["name"])
            kinds[tag["path"], f'{tag["scope"]}::{name}' if tag["scope"] else name] = tag["kind"]
        elif tag["kind"] == "member":
            if "static" not in tag.get("properties", ""):
                members[key].append(tag["name"])
            if tag.get("access") != "public":
                not_records.add(key)
        elif tag["scope"] and changes(tag, tag["scope"]):
            not_records.add(key)
    return {key: len(names) for key, names in members.items()
            if len(names) > MOST_MEMBERS and not key[1].endswith("Options")
            and (kinds.get(key) != "struct" or key in not_records)}


def device_tests(root, files):
    """{file: lines} with tests of the device, of files that are not named for it."""
    found = {}
    for name in files:
        if NAMED.search(name) or not name.startswith(("src/", "include/")) or name.endswith("_test.cpp"):
            continue
        lines = (root / name).read_text().splitlines()
        numbers = [i for i, line in enumerate(lines, 1) if DEVICE_TEST.search(line.split("//")[0])]
        if numbers:
            found[name] = numbers
    return found


def check(root):
    files = [str(path.relative_to(root)) for folder in ("include", "src", "tests", "examples")
             for path in sorted(root.glob(f"{folder}/**/*")) if path.suffix in {".h", ".cpp", ".cu"}]
    problems = [f"{name}: {owner} has {count} data members, more than {MOST_MEMBERS}"
                for (name, owner), count in sorted(large_classes(root, files).items())]
    return problems + [
        f"{name}: is not named for a device and tests for one in line {', '.join(map(str, lines))}"
        for name, lines in device_tests(root, files).items()]


def self_test():
    def members(count, text="int m{};"):
        return " ".join(text.format(i) for i in range(count))

    bad = {
        "src/base/a.h": "class A { public: void f(); private: " + members(13) + " };",
        "src/base/b.h": "struct B { void change(); " + members(13) + " };",
        "src/base/c.h": "struct C { ~C(); " + members(13) + " };",
        "src/base/d.cpp": "namespace { class D { std::function<void()> f; int a, b; " + members(10) + " }; }",
        "src/comm/e.cpp": "bool e(const Buffer& b) { return b.device.kind == DeviceKind::kCpu; }",
        "src/torch/data/f.cpp": "bool f(const Tensor& t) { return t.is_cuda(); }",
        "src/torch/optim/g.cpp": "void g() { if (on_device) h(); }",
        "src/torch/optim/h.cpp": "void h() { if (model->on_device()) i(); }",
    }
    good = {
        "src/base/i.h": "class I { public: void f(); private: static constexpr int kOne = 1; " + members(12) + " };",
        "src/base/j.h": "struct J { J(); int sum() const; static J make(); bool operator==(const J&); " + members(13) + " };",
        "src/base/k.h": "struct KOptions { void f(); " + members(13) + " };",
        "src/base/l.h": "class L { struct Part { " + members(7) + " }; Part part; " + members(7) + " };",
        "src/base/o.cpp": "namespace { struct O { " + members(13) + " }; }",
        "src/torch/device/m.cpp": bad["src/torch/data/f.cpp"],
        "src/torch/data/gpu_draws.cpp": bad["src/torch/data/f.cpp"],
        "src/torch/optim/n.cpp": "void n() { on_device->begin(); }  // if (on_device)",
    }
    for name, text in {**bad, **good}.items():
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True)
            path.write_text(text + "\n")
            if bool(check(pathlib.Path(folder))) != (name in bad):
                sys.exit(f"check_classes.py: wrong verdict on {name}: {text}")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    problems = check(root)
    print("".join(problem + "\n" for problem in problems), end="")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()

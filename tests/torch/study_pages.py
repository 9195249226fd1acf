#!/usr/bin/env python3
"""Runs parts of tools/study.py with a few steps on synthetic data, and reads what they have written.

  study_pages.py LOCKSTEP       one part; all of them with LOCKSTEP_TEST_FULL, but `network` only where hosts can be made
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

sys.dont_write_bytecode = True
TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
import check_docs  # noqa: E402


def hosts_can_be_made() -> bool:
    enter = ["unshare", "--net", "test", "-c", "/dev/net/tun"]
    return os.geteuid() == 0 and subprocess.run(enter, capture_output=True).returncode == 0


def study(lockstep: str, folder: str, parts: list[str]) -> str:
    ended = subprocess.run([TOOLS / "study.py", "--quick", "--at-once", "2", "--lockstep", lockstep, "--work", folder, *parts],
                           capture_output=True, text=True)
    if ended.returncode != 0:
        sys.exit(f"tools/study.py ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def check_pages(folder: pathlib.Path, parts: list[str]) -> None:
    for name in ["README", *parts]:
        text = (folder / f"{name}.md").read_text()
        for number, line in check_docs.prose(text):
            assert not check_docs.too_wide(line), f"{name}.md:{number} is too wide: {line}"
            assert "None" not in line.split() and "nan" not in line.split(), f"{name}.md:{number}: {line}"
        for _, target in check_docs.links_of(text):
            assert target.startswith("../") or (folder / target).exists(), f"{name}.md: there is no {target}"
    for picture in folder.glob("*.svg"):
        xml.etree.ElementTree.parse(picture)


def main() -> None:
    parts = ["codecs"]
    if os.environ.get("LOCKSTEP_TEST_FULL"):
        parts += ["local"] + ["network"] * hosts_can_be_made()
    with tempfile.TemporaryDirectory() as folder:
        study(sys.argv[1], folder, parts)
        check_pages(pathlib.Path(folder), parts)
        kept = (pathlib.Path(folder) / "runs.jsonl").read_text()
        again = study(sys.argv[1], folder, parts)
        assert "1/" not in again and (pathlib.Path(folder) / "runs.jsonl").read_text() == kept, again


main()

"""Jobs of `lockstep train`, and what is kept of them.

Every job that has ended is a line of JSON in runs.jsonl. A job that is there is not run again, so a study that was
interrupted goes on where it was, and a page can be written on another machine than the one that has trained.
"""
import concurrent.futures
import ctypes
import dataclasses
import datetime
import hashlib
import json
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

FASHION, TEXT = "fashion-mnist", "text.txt"
PR_SET_PDEATHSIG = 1
ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Job:
    """The words after `lockstep train`; `place` and `turn` tell apart runs of which the time counts."""
    words: str
    place: str = ""
    turn: int = 0

    @property
    def key(self) -> str:
        return f"{self.words} @ {self.place} {self.turn}" if self.place else self.words


@dataclasses.dataclass
class Settings:
    lockstep: str
    data: str
    folder: pathlib.Path  # of the pages
    work: pathlib.Path  # of runs.jsonl and the text
    at_once: int
    quick: bool


def die_with_parent() -> None:
    """In a child: nothing that a study has started outlives it. A job that is told to end would first wait for its step."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def machine(lockstep: str) -> dict[str, str]:
    """What a number depends on besides the command. The commit of a binary from elsewhere is not known."""
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)", cpuinfo, re.M)
    listed = subprocess.run(["lscpu"], capture_output=True, text=True) if not model else None
    named = model or re.search(r"^Model name: *(.*)", listed.stdout, re.M)
    own = pathlib.Path(lockstep).resolve().is_relative_to(ROOT / "build")
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {"processor": f"{named[1] if named else 'unknown'}, {platform.machine()}", "cores": str(os.cpu_count()),
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
            "commit": commit.stdout.strip() if commit.stdout and own else "another build"}


def text_of_docs(settings: Settings) -> pathlib.Path:
    """All Markdown of docs/ but the studies. Written once, so that a study has one text although the pages change."""
    path = settings.work / TEXT
    if not path.exists():
        pages = sorted((ROOT / "docs").rglob("*.md"))
        text = "".join(page.read_text() for page in pages if "studies" not in page.parts)
        path.write_text(text[:20000] if settings.quick else text)
    return path


class Runs:
    """Runs jobs, and keeps their reports. Any thread."""

    def __init__(self, settings: Settings):
        self.settings = settings
        settings.work.mkdir(parents=True, exist_ok=True)
        self.file = settings.work / "runs.jsonl"
        self.text = text_of_docs(settings)
        self.lock = threading.Lock()
        self.kept: dict[str, dict] = {}
        if self.file.exists():
            lines = self.file.read_text().splitlines()
            self.kept = {run["job"]: run for run in map(json.loads, filter(None, lines))}
        self.machine = machine(settings.lockstep)

    def command(self, job: Job) -> list[str]:
        places = {FASHION: self.settings.data, TEXT: str(self.text)}
        return [self.settings.lockstep, "train"] + [places.get(word, word) for word in job.words.split()]

    def keep(self, job: Job, result: dict) -> dict:
        run = {"job": job.key, "machine": self.machine, **result}
        if TEXT in job.words.split():
            run["text"] = {"bytes": self.text.stat().st_size, "sha256": hash_of(self.text)}
        with self.lock, self.file.open("a") as file:
            file.write(json.dumps(run) + "\n")
            self.kept[job.key] = run
        return run

    def has(self, job: Job) -> bool:
        return job.key in self.kept

    def of(self, job: Job) -> dict:
        """The report of a job that was run."""
        return self.kept[job.key]["report"]

    def run(self, job: Job) -> None:
        with tempfile.TemporaryDirectory(dir=self.settings.work) as folder:
            report = pathlib.Path(folder) / "report.json"
            command = self.command(job) + ["--checkpoint", "none", "--report", str(report)]
            ended = subprocess.run(command, capture_output=True, text=True, preexec_fn=die_with_parent)
            self.keep(job, result_of(job, ended.returncode, ended.stdout, ended.stderr, report))

    def run_all(self, jobs: list[Job]) -> None:
        """Those that were not run, some of them at once."""
        waiting = [job for job in dict.fromkeys(jobs) if not self.has(job)]
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(self.settings.at_once) as pool:
            running = {pool.submit(self.run, job): job for job in waiting}
            try:
                for number, done in enumerate(concurrent.futures.as_completed(running), 1):
                    done.result()
                    print(f"{number}/{len(waiting)}  {time.monotonic() - began:.0f} s  {running[done].key}", flush=True)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def result_of(job: Job, code: int, said: str, complained: str, report: pathlib.Path) -> dict:
    """What to keep. A job whose training has diverged has ended well: that is its result."""
    if code == 2 and "diverged" in complained:
        return {"report": {"diverged": True}}
    if code != 0 or not report.exists():
        sys.exit(f"study: `lockstep train {job.words}` ended with {code}:\n{complained[-2000:]}")
    epochs = [float(percent) for percent in re.findall(r"^epoch \d+: test accuracy ([\d.]+) %", said, re.M)]
    return {"report": json.loads(report.read_text()), "epochs": epochs}


def hash_of(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]

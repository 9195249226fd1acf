#!/usr/bin/env python3
"""Jobs with faults: every one must end with the weights of the undisturbed run.

  tools/chaos.py [--faults N] [--seed S] [--build DIR]

Each job has a model, a number of workers and a list of faults, all chosen by the seed: some strike at a chosen point of
a step (LOCKSTEP_FAULTS, src/control/faults.h), the others are signals at any instant, to workers and to replacements
that are about to join. The same seed gives the same choices; instants differ. Ends with 1 at the first job that does
not end well, and leaves its output in chaos-SEED.log."""
import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

POINTS = ["forward", "backward", "reduce", "small", "intent", "torn", "update", "written", "commit", "numbers",
          "regroup", "evaluation", "checkpoint", "join"]
STEPS = 24
LIMIT_S = 150


def arguments_of(model, folder):
    data = {"gpt": os.path.join(folder, "text")}.get(model, "synthetic:300")
    more = {"gpt": ["--context", "16"], "mlp": ["--optimizer", "adamw", "--clip-norm", "1"]}.get(model, [])
    return ["--model", model, "--data", data, "--global-batch", "32", "--shards", "8", "--steps", str(STEPS)] + more


def workers_of(marker):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = file.read()
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read()
        except OSError:
            continue
        if marker.encode() in environment and b"lockstep-train" in command.split(b"\0")[0]:
            found.append(int(pid))
    return found


def strike(stop, marker, rng, count, struck):
    """Sends SIGKILL to any worker, at any instant."""
    for _ in range(count):
        if stop.wait(rng.uniform(0.05, 1.0)):
            return
        victims = workers_of(marker)
        if not victims:
            continue
        try:
            os.kill(rng.choice(victims), signal.SIGKILL)
            struck.append(1)
        except OSError:
            pass


def run(log_path, build, workers, arguments, faults, kills, folder, rng):
    report = os.path.join(folder, "report.json")
    checkpoint = tempfile.mkdtemp(dir=folder)
    if os.path.exists(report):
        os.unlink(report)
    marker = f"LOCKSTEP_CHAOS={os.getpid()}-{rng.getrandbits(32)}"
    environment = dict(os.environ, LOCKSTEP_FAULTS=",".join(faults), LOCKSTEP_LOG="info")
    name, value = marker.split("=")
    environment[name] = value
    command = [f"{build}/lockstep", "run", "-n", str(workers), "--max-restarts", "100000", "--",
               f"{build}/lockstep-train", "--workers", str(workers), "--report", report,
               "--checkpoint", checkpoint, "--checkpoint-every", "5"] + arguments
    stop, struck = threading.Event(), []
    thread = threading.Thread(target=strike, args=(stop, marker, rng, kills, struck))
    with open(log_path, "w", encoding="utf-8") as log:
        job = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        thread.start()
        try:
            code = job.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            job.send_signal(signal.SIGINT)
            job.wait()
            code = "too late"
        stop.set()
        thread.join()
    with open(log_path, encoding="utf-8", errors="replace") as log:
        said = log.read()
    # A worker that is killed while it exits makes the job fail, but the training has ended by then.
    if (code != 0 and "Trained after" not in said) or not os.path.exists(report):
        return f"ended with {code}", 0
    with open(report, encoding="utf-8") as file:
        hash_of = json.load(file)["weights_sha256"]
    left = said.count(" was killed by ")
    return hash_of, max(left, len(struck))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--build", default="build")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    log = f"chaos-{options.seed}.log"
    began, faults, jobs = time.time(), 0, 0
    with tempfile.TemporaryDirectory(prefix="lockstep-chaos-") as folder:
        with open(os.path.join(folder, "text"), "w", encoding="utf-8") as text:
            text.write("the workers of a job take the same step, and none of them waits for ever. " * 400)
        expected = {}
        while faults < options.faults:
            model, workers = rng.choice(["mlp", "cnn", "gpt"]), rng.randint(2, 8)
            arguments = arguments_of(model, folder)
            if model not in expected:
                expected[model], _ = run(log, options.build, 2, arguments, [], 0, folder, rng)
                print(f"{model}: {expected[model][:16]}", flush=True)
            planned = [f"{rng.choice(['kill', 'kill', 'crash'])}@{rng.randrange(1, STEPS)}:{rng.randrange(workers)}:"
                       f"{rng.choice(POINTS)}" for _ in range(rng.randint(0, 4))]
            kills = rng.randint(0, 5)
            got, struck = run(log, options.build, workers, arguments, planned, kills, folder, rng)
            jobs += 1
            if got != expected[model]:
                print(f"{model} on {workers} workers, {planned} and {kills} kills: {got}, not {expected[model]}; "
                      f"see {log}", file=sys.stderr)
                return 1
            faults += struck
            print(f"{model} on {workers} workers: {struck} faults, {faults} so far in {jobs} jobs", flush=True)
    print(f"{faults} faults in {jobs} jobs, seed {options.seed}: every job ended with the weights of the undisturbed run "
          f"({time.time() - began:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())

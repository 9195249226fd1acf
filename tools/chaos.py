#!/usr/bin/env python3
"""Jobs with faults: every one must end with the weights of the undisturbed run.

  tools/chaos.py [--faults N] [--seed S] [--build DIR] [--engine E] [--hosts H]

Each job has a model, a number of workers and a list of faults, all chosen by the seed: some strike at a chosen point of
a step, some of these on all workers at once, some are drawn by rates (--faults of `lockstep run`,
src/control/fault_schedule.h), the others are signals at any instant, to workers and to replacements that are about to
join. The same seed gives the same choices; instants differ.
Ends with 1 at the first job that does not end well, and leaves its output in chaos-SEED.log.

--engine tcp: over sockets; there connections are cut, too. --hosts 2: two launchers, each with half of the workers, as on
two hosts. Both are for a build whose survivors go on there; another one refuses, or begins the job again."""
import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

POINTS = ["read", "forward", "backward", "reduce", "losses", "small", "intent", "torn", "update", "written", "commit", "numbers",
          "hook", "regroup", "evaluation", "checkpoint", "file", "join"]
STEPS = 24
LIMIT_S = 200
STRUCK = "lockstep: fault "


def arguments_of(model, folder):
    data = {"gpt": os.path.join(folder, "text")}.get(model, "synthetic:300")
    more = {"gpt": ["--context", "16"], "mlp": ["--optimizer", "adamw", "--clip-norm", "1"]}.get(model, [])
    return ["--model", model, "--data", data, "--global-batch", "32", "--shards", "8", "--steps", str(STEPS)] + more


def draw_faults(rng, workers, engine):
    """The words of --faults, single faults and perhaps rates; and how many kills come at any instant."""
    # A stopped worker costs its job 13 s, so it is rare. It is alone: a newcomer that waits as long for its generation as
    # the others wait for the stopped worker gives up, and ends the job.
    if rng.random() < 0.1:
        where = rng.choice([point for point in POINTS if point not in ("torn", "regroup", "join")])
        # Not in the last step: behind it workers wait for each other outside of any step, and nobody goes on.
        return [f"stop@{rng.randrange(1, STEPS - 1)}:{rng.randrange(workers)}:{where}"], 0
    kinds = ["kill"] * 4 + ["crash"] * 2 + ["slow"] * 2 + (["cut"] * 2 if engine == "tcp" else [])
    faults = []
    for _ in range(rng.randint(0, 4)):
        kind = rng.choice(kinds)
        where = rng.choice([point for point in POINTS if point != "torn" or kind in ("kill", "crash")])
        step = 0 if where == "join" else rng.randrange(1, STEPS)
        detail = f":{rng.randint(1, 300)}ms" if kind == "slow" else ""
        faults.append(f"{kind}@{step}:{rng.randrange(workers)}:{where}{detail}")
    if rng.random() < 0.2:  # nobody survives
        where, step = rng.choice(POINTS[1:12]), rng.randrange(1, STEPS)
        faults += [f"kill@{step}:{worker}:{where}" for worker in range(workers)]
    if rng.random() < 0.3:
        faults += ["kill=0.05/step", "slow=20ms:0.1/step"]
    return faults, rng.randint(0, 5)


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
    """Sends SIGKILL to any worker, at any instant; sometimes to all of them."""
    for _ in range(count):
        if stop.wait(rng.uniform(0.05, 1.0)):
            return
        victims = workers_of(marker)
        if not victims:
            continue
        for victim in victims if rng.random() < 0.15 else [rng.choice(victims)]:
            try:
                os.kill(victim, signal.SIGKILL)
                struck.append(1)
            except OSError:
                pass


def commands_of(options, workers, faults, seed, arguments, folder):
    """One launcher, or one for each host."""
    common = ["--max-restarts", "100000", "--timeout", "10", "--step-timeout", "3"]
    if options.engine:
        common += ["--engine", options.engine]
    if faults:
        common += ["--faults", ",".join(faults)]
    if any("=" in fault for fault in faults):
        common += ["--fault-seed", str(seed)]
    job = ["--", f"{options.build}/lockstep-train", "--workers", str(workers)] + arguments
    run = [f"{options.build}/lockstep", "run"]
    if options.hosts == 1:
        return [run + ["-n", str(workers)] + common + job]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = f"127.0.0.1:{free.getsockname()[1]}"
    shares = [workers // options.hosts + (host < workers % options.hosts) for host in range(options.hosts)]
    return [run + ["-n", str(share), "--nodes", str(options.hosts), "--node-rank", str(host), "--rendezvous", meeting,
                   "--secret-file", os.path.join(folder, "secret")] + common + job for host, share in enumerate(shares)]


def wait(jobs):
    """The exit code of the first launcher."""
    until = time.time() + LIMIT_S
    try:
        return [job.wait(max(until - time.time(), 1)) for job in jobs][0]
    except subprocess.TimeoutExpired:
        for job in jobs:
            job.send_signal(signal.SIGINT)
        for job in jobs:
            job.wait()
        return "too late"


def run(options, log_path, workers, arguments, faults, kills, folder, rng):
    report = os.path.join(folder, "report.json")
    checkpoint = tempfile.mkdtemp(dir=folder)
    if os.path.exists(report):
        os.unlink(report)
    value = f"{os.getpid()}-{rng.getrandbits(32)}"
    environment = dict(os.environ, LOCKSTEP_LOG="info", LOCKSTEP_CHAOS=value)
    arguments = ["--report", report, "--checkpoint", checkpoint, "--checkpoint-every", "5"] + arguments
    commands = commands_of(options, workers, faults, rng.getrandbits(31), arguments, folder)
    stop, struck = threading.Event(), []
    thread = threading.Thread(target=strike, args=(stop, f"LOCKSTEP_CHAOS={value}", rng, kills, struck))
    with open(log_path, "w", encoding="utf-8") as log:
        jobs = []
        for host, command in enumerate(commands):
            if options.hosts > 1:
                environment["LOCKSTEP_HOST"] = f"host{host}"  # their workers share no memory
            jobs.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
        thread.start()
        code = wait(jobs)
        stop.set()
        thread.join()
    with open(log_path, encoding="utf-8", errors="replace") as log:
        said = log.read()
    # A worker that is killed while it exits makes the job fail, but the training has ended by then.
    if (code != 0 and "Trained after" not in said) or not os.path.exists(report):
        return f"ended with {code}", []
    with open(report, encoding="utf-8") as file:
        hash_of = json.load(file)["weights_sha256"]
    hits = [line.split(STRUCK)[1].strip() for line in said.splitlines() if STRUCK in line and " | " not in line]
    return hash_of, hits + ["signal"] * len(struck)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--build", default="build")
    parser.add_argument("--engine", default="", help="such as tcp (default: the best)")
    parser.add_argument("--hosts", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    log = f"chaos-{options.seed}.log"
    began, faults, jobs, seen = time.time(), 0, 0, {}
    with tempfile.TemporaryDirectory(prefix="lockstep-chaos-") as folder:
        with open(os.path.join(folder, "text"), "w", encoding="utf-8") as text:
            text.write("the workers of a job take the same step, and none of them waits for ever. " * 400)
        with open(os.open(os.path.join(folder, "secret"), os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            file.write("%064x" % rng.getrandbits(256))
        expected = {}
        while faults < options.faults:
            model, workers = rng.choice(["mlp", "cnn", "gpt"]), rng.randint(max(2, options.hosts), 8)
            arguments = arguments_of(model, folder)
            if model not in expected:
                plain = argparse.Namespace(build=options.build, engine="", hosts=1)
                expected[model], _ = run(plain, log, 2, arguments, [], 0, folder, rng)
                if expected[model].startswith("ended with"):
                    print(f"{model}, undisturbed: {expected[model]}; see {log}", file=sys.stderr)
                    return 1
                print(f"{model}: {expected[model][:16]}", flush=True)
            planned, kills = draw_faults(rng, workers, options.engine)
            got, struck = run(options, log, workers, arguments, planned, kills, folder, rng)
            jobs += 1
            if got != expected[model]:
                print(f"{model} on {workers} workers, {','.join(planned)} and {kills} kills: {got}, not {expected[model]}; "
                      f"see {log}", file=sys.stderr)
                return 1
            faults += len(struck)
            for fault in struck:
                name = f"{fault.split('@')[0]} {fault.split(':')[2]}" if "@" in fault else fault
                seen[name] = seen.get(name, 0) + 1
            print(f"{model} on {workers} workers: {len(struck)} faults, {faults} so far in {jobs} jobs", flush=True)
    print(", ".join(f"{name}: {count}" for name, count in sorted(seen.items())))
    print(f"{faults} faults in {jobs} jobs, seed {options.seed}: every job ended with the weights of the undisturbed run "
          f"({time.time() - began:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())

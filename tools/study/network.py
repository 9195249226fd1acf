"""Steps a second over a line of 100 Mbit/s and 20 ms between two hosts, beside PyTorch's DDP."""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from study import pages, plots
from study.line import ADDRESS, Hosts
from study.runs import FASHION, ROOT, Job, Runs, die_with_parent, result_of

RATE, DELAY_S = 100e6, 0.01
TITLE = "A slow network: steps a second, and time to 90 %"
LINE, ALONE = "line", "no network"
DDP = "PyTorch's DDP over Gloo"
PYTHON = "/usr/bin/python3"
PORT = 29400
LIMIT_S = 900
GOAL = 90.0  # percent
EPOCHS = 3
LOCAL, DILOCO = "local SGD, H = 16", "DiLoCo, H = 50"
MORE = {"float32": "", "bf16": "--codec bf16", "int8": "--codec int8", "one-bit": "--codec one-bit",
        "PowerSGD, rank 4": "--codec power-sgd:4:0",
        LOCAL: "--buffers mean --local-steps 16", DILOCO: "--optimizer adamw --buffers mean --local-steps 50 --outer nesterov"}
STEPS = {"mlp": dict(zip([*MORE, DDP], [5, 8, 12, 24, 24, 32, 100, 4])),
         "cnn": dict(zip([*MORE, DDP], [24, 24, 24, 40, 40, 48, 100, 24]))}
BATCH = {"mlp": 64, "cnn": 128}


def has_torch(python: str) -> bool:
    return pathlib.Path(python).exists() and subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0


class Plan:
    def __init__(self, quick: bool):
        self.quick = quick
        self.turns = 1 if quick else 2
        self.models = ["cnn"] if quick else ["mlp", "cnn"]
        self.names = ["float32", "int8"] if quick else list(MORE)
        self.ddp = has_torch(PYTHON)

    def steps(self, model: str, name: str) -> int:
        return 4 if self.quick else STEPS[model][name]

    def base(self, model: str, name: str) -> str:
        return f"--model {model} --data {FASHION} --global-batch {BATCH[model]} --shards 2 {MORE[name]}".strip()

    def timed(self, model: str, name: str, place: str, turn: int) -> Job:
        if name == DDP:
            return Job(f"{DDP}: {model}, {BATCH[model] // 2} samples a worker, {self.steps(model, name)} steps", place, turn)
        alone = " --workers 2 --engine shm" if place == ALONE else ""
        return Job(f"{self.base(model, name)} --steps {self.steps(model, name)}{alone}", place, turn)

    def systems(self) -> list[str]:
        return self.names + [DDP] * self.ddp

    def epochs(self, name: str) -> Job:
        epochs = 1 if self.quick else EPOCHS
        return Job(f"{self.base('cnn', name)} --workers 2 --epochs {epochs} --decay cosine")

    def all_epochs(self) -> list[Job]:
        return [self.epochs(name) for name in self.names]

    def all_timed(self) -> list[tuple[str, str, Job]]:
        """Model, system and job. Systems take turns: a machine changes from minute to minute."""
        return [(model, name, self.timed(model, name, place, turn)) for turn in range(self.turns) for model in self.models
                for name in self.systems() for place in (LINE, ALONE)]


def on_half(number: int):
    """For a child: a host has its half of the cores."""
    cores = sorted(os.sched_getaffinity(0))
    half = cores[number * len(cores) // 2:(number + 1) * len(cores) // 2] or cores

    def enter() -> None:
        os.sched_setaffinity(0, half)
        die_with_parent()
    return enter


def together(commands: list[list[str]], environments: list[dict[str, str]]) -> tuple[int, str, str]:
    """Runs both; the worse code, and what the first has said."""
    pipe = subprocess.PIPE
    started = [subprocess.Popen(command, env={**os.environ, **more}, text=True, stdout=pipe, stderr=pipe,
                                preexec_fn=on_half(host))
               for host, (command, more) in enumerate(zip(commands, environments))]
    try:
        said = [process.communicate(timeout=LIMIT_S) for process in started]
    except subprocess.TimeoutExpired:
        for process in started:
            process.terminate()
        sys.exit(f"study: `{' '.join(commands[0])}` has not ended after {LIMIT_S} s")
    return max(abs(process.returncode) for process in started), said[0][0], "".join(errors for _, errors in said)


def ddp_result(job: Job, model: str, steps: int, hosts: Hosts | None) -> dict:
    words = [PYTHON, str(ROOT / "src/bench/step/lockstep_bench_ddp.py"), model, str(BATCH[model] // 2), "sgd-momentum", "0",
             str(steps), "cpu", "float32", "tiny", "128", str(25 << 20)]
    address, interface = (ADDRESS.format(1), "eth0") if hosts else ("127.0.0.1", "lo")
    places = [{"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0" if hosts else str(rank), "MASTER_ADDR": address,
               "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
              for rank in range(2)]
    code, said, complained = together([(hosts.enter(host) if hosts else []) + words for host in range(2)], places)
    if code != 0:
        sys.exit(f"study: {job.key} ended with {code}:\n{complained[-2000:]}")
    times = [ms for line in said.splitlines() for ms in json.loads(line)["step_ms"]]
    return {"report": {"step_ms": {"p50": statistics.median(times)}, "steps": steps + 6}}


def line_result(runs: Runs, job: Job, hosts: Hosts) -> dict:
    """A job on two hosts, as docs/guide/several-hosts.md has it."""
    with tempfile.TemporaryDirectory(dir=runs.settings.work) as folder:
        secret, report = pathlib.Path(folder) / "secret", pathlib.Path(folder) / "report.json"
        secret.touch(0o600)
        secret.write_text(os.urandom(32).hex())
        common = ["--nodes", "2", "--rendezvous", f"{ADDRESS.format(1)}:{PORT}", "--secret-file", str(secret), "--workers", "1",
                  "--checkpoint", "none", "--quiet"]
        commands = [hosts.enter(host) + runs.command(job) + common + ["--node-rank", str(host)] for host in range(2)]
        commands[0] += ["--report", str(report)]
        return result_of(job, *together(commands, [{}, {}]), report)


def time_one(runs: Runs, model: str, name: str, job: Job, steps: int) -> None:
    if job.place == LINE:
        time_over_line(runs, model, name, job, steps)
    elif name == DDP:
        runs.keep(job, ddp_result(job, model, steps, None))
    else:
        runs.run(job)


def time_over_line(runs: Runs, model: str, name: str, job: Job, steps: int) -> None:
    began = time.monotonic()
    with Hosts(RATE, DELAY_S) as hosts:
        result = ddp_result(job, model, steps, hosts) if name == DDP else line_result(runs, job, hosts)
    carrier = hosts.carrier_s / (time.monotonic() - began)
    # Backwards: the first weights go from host 0 to host 1, and count for no step.
    runs.keep(job, {**result, "line_bytes": hosts.carried[1], "carrier": carrier})


def measure(runs: Runs, plan: Plan) -> None:
    waiting = [timed for timed in plan.all_timed() if not runs.has(timed[2])]
    for number, (model, name, job) in enumerate(waiting, 1):
        time_one(runs, model, name, job, plan.steps(model, name))
        print(f"{number}/{len(waiting)}  {runs.of(job)['step_ms']['p50']:.1f} ms a step  {job.key}", flush=True)


def per_second(runs: Runs, plan: Plan, model: str, name: str, place: str) -> plots.Row:
    """The mean over turns of 1 / the median step."""
    speeds = [1000 / runs.of(plan.timed(model, name, place, turn))["step_ms"]["p50"] for turn in range(plan.turns)]
    return plots.Row(name, statistics.mean(speeds), min(speeds), max(speeds))


def megabytes(runs: Runs, plan: Plan, model: str, name: str) -> float:
    job = plan.timed(model, name, LINE, 0)
    return runs.kept[job.key]["line_bytes"] / runs.of(job)["steps"] / 1e6


def section(runs: Runs, plan: Plan, model: str) -> str:
    base = per_second(runs, plan, model, plan.names[0], LINE).value
    rows, drawn = [], []
    for name in plan.systems():
        line, alone = (per_second(runs, plan, model, name, place) for place in (LINE, ALONE))
        drawn.append(line)
        rows.append([name, f"{line.value:.2f}", f"{line.low:.2f} to {line.high:.2f}", f"{line.value / base:.2f}",
                     f"{alone.value:.2f}", f"{100 * line.value / alone.value:.0f} %",
                     f"{megabytes(runs, plan, model, name):.2f}"])
    (runs.settings.folder / f"network-{model}.svg").write_text(plots.ranges(
        f"{model}, 2 hosts, 100 Mbit/s, 20 ms", "steps a second: mean and range over turns", drawn, bars=True))
    head = ["job", "steps/s", "range", "÷ float32", "steps/s without a network", "of these", "MB on the line each way a step"]
    parameters = runs.of(plan.timed(model, plan.names[0], ALONE, 0))["parameters"]
    return (f"## {model}, {parameters:,} parameters, batch {BATCH[model] // 2} on each host\n\n" + pages.table(head, rows) +
            f"![Steps a second of {model}](network-{model}.svg)\n\n" + aims(runs, plan, model))


def aims(runs: Runs, plan: Plan, model: str) -> str:
    """What was wanted, beside what came out."""
    if plan.quick:
        return ""
    base = per_second(runs, plan, model, "float32", LINE).value
    if model == "mlp":
        reached = [(name, least, per_second(runs, plan, model, name, LINE).value / base)
                   for name, least in (("bf16", 1.8), ("int8", 3.0))]
        return pages.prose(*[f"Aimed at, where the line is the limit: {name} at least {least} times float32. "
                             f"{'Reached' if value >= least else 'Not reached'}: {value:.2f} times."
                             for name, least, value in reached])
    part = per_second(runs, plan, model, DILOCO, LINE).value / per_second(runs, plan, model, DILOCO, ALONE).value
    return pages.prose(f"Aimed at: {DILOCO} at least 90 % of the speed without a network. "
                       f"{'Reached' if part >= 0.9 else 'Not reached'}: {100 * part:.0f} %.")


def same_bits(runs: Runs, plan: Plan) -> str:
    pairs = [[runs.of(plan.timed(model, name, place, turn))["weights_sha256"] for place in (LINE, ALONE)]
             for model in plan.models for name in plan.names for turn in range(plan.turns)]
    same = sum(line == alone for line, alone in pairs)
    return f"{same} of {len(pairs)} jobs over the line had the weights, bit for bit, of the same job without a network."


def goal_table(runs: Runs, plan: Plan) -> str:
    rows = []
    for name in plan.names:
        run = runs.kept[plan.epochs(name).key]
        reached = [number for number, percent in enumerate(run["epochs"], 1) if percent >= GOAL]
        steps = run["report"]["steps"] // len(run["epochs"])
        told = ", ".join(f"{percent:.2f}" for percent in run["epochs"])
        if not reached:
            rows.append([name, told, f"not in {len(run['epochs'])}", "", "", ""])
            continue
        times = [steps * reached[0] / per_second(runs, plan, "cnn", name, place).value for place in (LINE, ALONE)]
        rows.append([name, told, str(reached[0]), f"{steps * reached[0]:,}", *[f"{seconds:.0f} s" for seconds in times]])
    head = ["job", "test accuracy after each epoch, %", "epochs to 90 %", "steps", "time over the line", "without a network"]
    return pages.table(head, rows)


def commands(plan: Plan) -> str:
    on_host = ("--nodes 2 --node-rank I --rendezvous 10.78.0.1:29400 --secret-file FILE --workers 1 --checkpoint none --quiet "
               "--report FILE")
    first = plan.models[0]
    words = plan.timed(first, plan.names[0], LINE, 0).words
    return ("float32 of the first table is, on host `I` and then without a network:\n\n" +
            pages.command(f"lockstep train {words} {on_host}") +
            pages.command(f"lockstep train {plan.timed(first, plan.names[0], ALONE, 0).words} --checkpoint none") +
            "The others add:\n\n" + pages.table(["job", "words"], [[name, f"`{MORE[name]}`"] for name in plan.names[1:]]))


def write(runs: Runs, plan: Plan) -> None:
    timed = [job for _, _, job in plan.all_timed()]
    busy = max(run["carrier"] for run in (runs.kept[job.key] for job in timed if job.place == LINE))
    page = f"# {TITLE}\n\n" + pages.prose(
        "Written by `make study PART=network`. Two hosts are network namespaces of one machine, with one worker and half of the "
        "cores each. The line between them carries 100 Mbit/s each way, and every packet is 10 ms on its way, so a round trip "
        "takes 20 ms. Headers of packets count.")
    page += pages.prose(
        f"A number is the mean of {pages.counted(plan.turns, 'turn')}, in which all jobs run one after the other; the range is "
        "over turns. In a turn it is 1 over the median step, or over the median round divided by its steps. *Without a "
        "network* is the same job with 2 workers that share memory; DDP's workers use the loopback there.")
    page += "".join(section(runs, plan, model) for model in plan.models)
    page += f"## Time to {GOAL:.0f} % test accuracy\n\n" + pages.prose(
        f"cnn on Fashion-MNIST, {pages.counted(1 if plan.quick else EPOCHS, 'epoch')} with a cosine decay of the learning rate, "
        "one seed. The result of a job does not depend on the network. So the accuracy after each epoch is from a run without "
        "one, and the time is the number of steps times the time of a step in the table above. Tests after epochs are not in "
        "it. Epochs are whole, so differences of accuracy that do not change their number do not show.")
    page += goal_table(runs, plan) + pages.prose(same_bits(runs, plan))
    page += "## How it was measured\n\n" + commands(plan) + pages.prose(
        "The line is a process that carries frames between two taps (`tools/study/line.py`): the kernel may have no netem. It "
        f"takes processor time from the workers, at most {100 * busy:.0f} % of a core in a job. Its queue holds 1.5 MB each way. "
        "Megabytes on the line are counted by it, with headers, from host 1 to host 0: all of a job, divided by its steps. "
        "Codecs need processor time as well, and on a machine of 2 cores each worker shares its core with its own network thread.")
    page += pages.prose(
        "DDP is `lockstep_bench_ddp.py` of `lockstep bench step`, with bucket views and a static graph: the same model and "
        "batch, random samples, and SGD with momentum. Its first 6 steps are not timed; their bytes count.")
    page += "## Where\n\nThe times:\n\n" + pages.measured_on(runs, timed)
    page += "The accuracy after each epoch:\n\n" + pages.command("lockstep train " + plan.epochs(plan.names[0]).words)
    (runs.settings.folder / "network.md").write_text(page + pages.measured_on(runs, plan.all_epochs()).rstrip() + "\n")

"""One of four workers three times slower: samples a second, and accuracy."""
from study import pages, plots
from study.runs import FASHION, Job, Runs

SEEDS = [1, 2, 3]
TITLE = "A slow worker: samples a second, and accuracy"
WAIT_MS = 60
MORE = {"synchronous": "", "staleness 1": "--staleness 1", "staleness 4": "--staleness 4", "staleness 16": "--staleness 16",
        "no bound": "--staleness any", "no bound, reduced rate": "--staleness any --stale-lr reduced", "1 backup": "--backups 1"}
EVEN = "synchronous, all fast"


class Plan:
    def __init__(self, quick: bool):
        self.seeds = SEEDS[:1] if quick else SEEDS
        self.steps = 4 if quick else 120
        self.wait_ms = 5 if quick else WAIT_MS
        self.names = ["synchronous", "no bound", "1 backup"] if quick else list(MORE)

    def job(self, name: str, seed: int | str) -> Job:
        waits = [self.wait_ms] * 3 + [self.wait_ms * (1 if name == EVEN else 3)]
        slow = ",".join(f"slow@every:{worker}:forward:{wait}ms" for worker, wait in enumerate(waits))
        more = f" {MORE[name]}" if MORE.get(name) else ""
        return Job(f"--model cnn --data {FASHION} --optimizer sgd --lr 0.01 --decay cosine --global-batch 64 --shards 4 "
                   f"--workers 4 --steps {self.steps} --seed {seed} --faults {slow}{more}")

    def row(self, name: str) -> list[Job]:
        return [self.job(name, seed) for seed in self.seeds]

    def jobs(self) -> list[Job]:
        return [self.job(name, seed) for seed in self.seeds for name in [EVEN, *self.names]]


def write(runs: Runs, plan: Plan) -> None:
    rows, drawn = [], []
    even = pages.row_of(runs, EVEN, plan.row(EVEN), "samples_per_second")
    for name in [EVEN, *plan.names]:
        speed = pages.row_of(runs, name, plan.row(name), "samples_per_second")
        accuracy = pages.row_of(runs, name, plan.row(name), "test_accuracy", 100)
        part = f"{100 * speed.value / even.value:.0f} %" if speed and even else ""
        rows.append([name, *pages.spoken(speed, 0), part, *pages.spoken(accuracy)])
        drawn += [speed] if speed else []
    (runs.settings.folder / "stragglers.svg").write_text(plots.ranges(
        "cnn, 4 workers, one of them three times slower", "samples a second: mean and range over seeds", drawn, bars=True))
    page = f"# {TITLE}\n\n" + pages.prose(
        "Written by `make study PART=stragglers`. Four workers train the same job; for each shard three of them wait "
        f"{plan.wait_ms} ms before they compute, as if a device had to, and the fourth waits {3 * plan.wait_ms} ms. Each row has "
        f"{pages.counted(len(plan.seeds), 'seed')}, {plan.steps} steps of 64 samples.")
    head = ["job", "samples/s", "range", "of all fast", "test accuracy, %", "range"]
    page += pages.table(head, rows) + "![Samples a second](stragglers.svg)\n\n" + "A row is, with each `SEED`:\n\n"
    page += pages.command("lockstep train " + plan.job(plan.names[0], "SEED").words) + "with the options of the row:\n\n"
    page += pages.table(["job", "options"], [[name, f"`{MORE[name]}`"] for name in plan.names if MORE[name]])
    page += "## How to read it\n\n" + pages.prose(
        "If the slow worker took a third of the tasks of each other one, the four would have 83 % of the speed of four fast ones. "
        "In an asynchronous round workers compute while others wait; in a synchronous step all compute at once, on the cores of "
        "one machine. So rows may be above 83 %. A synchronous step waits for the slow worker's shard. Dropped samples do not count: with 1 backup a step has three quarters of the samples. Accuracy is that after "
        "equal steps: a job that is faster has reached it sooner. Learning rates were not tuned for a row; with momentum 0.9 "
        "stale gradients bear less than synchronous ones.")
    (runs.settings.folder / "stragglers.md").write_text(page + "## Where\n\n" + pages.measured_on(runs, plan.jobs()).rstrip() + "\n")

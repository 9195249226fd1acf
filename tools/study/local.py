"""Accuracy against H, the number of steps between two exchanges."""
import textwrap

from study import pages, plots
from study.runs import FASHION, Job, Runs

SEEDS, SEARCH_SEED = [1, 2, 3], 100
TITLE = "Local steps: accuracy against H"
RATES = {"sgd": ["0.01", "0.03", "0.1"], "adamw": ["0.0003", "0.001", "0.003"]}
# Rate and momentum of the outer Nesterov; the paper's first.
OUTER = ["nesterov:0.7:0.9", "nesterov:0.7:0.6", "nesterov:1:0.5"]
# What is drawn: a name, the inner optimizer, and the exchange.
FAMILIES = [("local SGD", "sgd", "mean"), ("AdamW, mean", "adamw", "mean"), ("DiLoCo", "adamw", "nesterov")]
NEAR = 0.5  # points of accuracy that count as nothing lost, if seeds do not differ by more


class Plan:
    def __init__(self, quick: bool):
        self.seeds = SEEDS[:1] if quick else SEEDS
        self.steps, self.batch = (8, 16) if quick else (1024, 32)
        self.rounds = [1, 4] if quick else [1, 4, 16, 64, 256]
        self.outer, self.outer_steps = (OUTER[:2], 4) if quick else (OUTER, 64)
        self.rates = {name: rates[:2] for name, rates in RATES.items()} if quick else RATES

    def base(self, optimizer: str, rate: str, seed: int | str) -> str:
        return (f"--model cnn --data {FASHION} --optimizer {optimizer} --lr {rate} --decay cosine --global-batch {self.batch} "
                f"--shards 4 --workers 2 --buffers mean --steps {self.steps} --seed {seed}")

    def search(self) -> list[Job]:
        return [Job(self.base(name, rate, SEARCH_SEED)) for name, rates in self.rates.items() for rate in rates]

    def outer_job(self, runs: Runs, outer: str) -> Job:
        base = self.base("adamw", best_rate(runs, self, "adamw"), SEARCH_SEED)
        return Job(f"{base} --local-steps {self.outer_steps} --outer {outer}")

    def search_outer(self, runs: Runs) -> list[Job]:
        """After search()."""
        return [self.outer_job(runs, outer) for outer in self.outer]

    def jobs(self, runs: Runs) -> list[Job]:
        names = [(name, None, "") for name in self.rates]
        names += [(optimizer, steps, outer) for _, optimizer, outer in FAMILIES for steps in self.rounds]
        return [job for name in names for job in self.row(runs, *name)]

    def row(self, runs: Runs, optimizer: str, steps: int | None, outer: str) -> list[Job]:
        """The jobs of all seeds; without steps, the synchronous ones."""
        outer = best_outer(runs, self) if outer == "nesterov" else outer
        local = f" --local-steps {steps} --outer {outer}" if steps else ""
        return [Job(self.base(optimizer, best_rate(runs, self, optimizer), seed) + local) for seed in self.seeds]


def best_rate(runs: Runs, plan: Plan, optimizer: str) -> str:
    return max(plan.rates[optimizer], key=lambda rate: reached(runs, Job(plan.base(optimizer, rate, SEARCH_SEED))))


def best_outer(runs: Runs, plan: Plan) -> str:
    return max(plan.outer, key=lambda outer: reached(runs, plan.outer_job(runs, outer)))


def reached(runs: Runs, job: Job) -> float:
    """Test accuracy; 0 if training has diverged."""
    return runs.of(job).get("test_accuracy", 0)


def accuracy(runs: Runs, plan: Plan, optimizer: str, steps: int | None = None, outer: str = "") -> plots.Row | None:
    name = f"H = {steps}" if steps else f"synchronous {optimizer}"
    return pages.row_of(runs, name, plan.row(runs, optimizer, steps, outer), "test_accuracy", 100)


def less(base: plots.Row, row: plots.Row | None) -> str:
    return "diverged" if row is None else f"{row.value - base.value:+.2f}"


def near(base: plots.Row, row: plots.Row | None) -> bool:
    return row is not None and row.value >= min(base.value - NEAR, base.low)


def item(text: str) -> str:
    return textwrap.fill("- " + text, pages.COLUMNS, subsequent_indent="  ", break_long_words=False) + "\n"


def effect(what: str, seen: bool, numbers: str) -> str:
    return item(f"**{what}: {'seen' if seen else 'not seen'}.** {numbers}")


def effects(runs: Runs, plan: Plan) -> str:
    """The three effects that others have reported, and whether they are here."""
    small = [steps for steps in plan.rounds if steps <= 4]
    largest = plan.rounds[-1]
    text = ""
    for name, optimizer, outer in FAMILIES[:2]:
        base = accuracy(runs, plan, optimizer)
        rows = {steps: accuracy(runs, plan, optimizer, steps, outer) for steps in plan.rounds}
        free = all(near(base, rows[steps]) for steps in small)
        points = pages.listed([f"{less(base, rows[steps])} at H = {steps}" for steps in small])
        text += effect(f"A small H is free, {name}", free, f"Points against the synchronous job: {points}.")
        points = f"{less(base, rows[largest])} at H = {largest}"
        costs = not near(base, rows[largest])
        text += effect(f"A large H costs, {name}", costs, f"Points against the synchronous job: {points}.")
    pairs = [(steps, accuracy(runs, plan, "adamw", steps, "mean"), accuracy(runs, plan, "adamw", steps, "nesterov"))
             for steps in plan.rounds if steps > 4 or len(plan.rounds) < 3]
    points = pages.listed([f"{less(mean, row) if mean else 'the mean diverged'} at H = {steps}" for steps, mean, row in pairs])
    better = all(row is not None and (mean is None or row.value > mean.value) for _, mean, row in pairs)
    text += effect(f"DiLoCo loses less than the mean of AdamW's weights, at every H from {pairs[0][0]} on", better,
                   f"Points of DiLoCo against the mean: {points}.")
    return text + "\n"


def results(runs: Runs, plan: Plan) -> str:
    rows, drawn = [], []
    for optimizer in plan.rates:
        row = accuracy(runs, plan, optimizer)
        rows.append([f"synchronous, {optimizer}", "", "", *pages.spoken(row)])
        if row:
            drawn.append(plots.Line(f"synchronous, {optimizer}", [(steps, row) for steps in plan.rounds], True))
    for name, optimizer, outer in FAMILIES:
        line = plots.Line(name, [])
        for steps in plan.rounds:
            row = accuracy(runs, plan, optimizer, steps, outer)
            rows.append([name, str(steps), str(plan.steps // steps), *pages.spoken(row)])
            line.points += [(steps, row)] if row else []
        drawn.append(line)
    (runs.settings.folder / "local.svg").write_text(plots.lines(
        f"cnn on Fashion-MNIST, {plan.steps} steps, 4 replicas: test accuracy, %", "H, steps between two exchanges", drawn))
    return (pages.table(["job", "H", "exchanges", "test accuracy, %", "range"], rows) +
            "![Test accuracy against H](local.svg)\n\n")


def chosen_rates(runs: Runs, plan: Plan) -> str:
    rows = []
    for optimizer, rates in plan.rates.items():
        best = best_rate(runs, plan, optimizer)
        for rate in rates:
            job = Job(plan.base(optimizer, rate, SEARCH_SEED))
            rows.append([optimizer, rate, told(runs, job), "chosen" if rate == best else ""])
    for outer in plan.outer:
        chosen = "chosen" if outer == best_outer(runs, plan) else ""
        rows.append(["DiLoCo", f"`{outer}`", told(runs, plan.outer_job(runs, outer)), chosen])
    return "## Learning rates\n\n" + pages.prose(
        f"Chosen with the synchronous job and a seed that is not used again ({SEARCH_SEED}), by test accuracy. Jobs with local "
        "steps have the rate of the synchronous job with the same optimizer; one of their own could help them. DiLoCo's outer "
        f"rate and momentum were chosen at H = {plan.outer_steps}. The first are the paper's. A rate at the end of its list may "
        "not be the best one.") + pages.table(["job", "rate", "test accuracy, %", ""], rows)


def told(runs: Runs, job: Job) -> str:
    return "diverged" if runs.of(job).get("diverged") else f"{100 * reached(runs, job):.2f}"


def reasons(plan: Plan) -> list[str]:
    last = plan.rounds[-1]
    return [
        f"**The job is short.** With H = {last} it has {pages.counted(plan.steps // last, 'exchange')}. Outer momentum needs "
        "many exchanges to build up.",
        "**The job begins with random weights.** Post-local SGD begins with steps that are synchronous, and DiLoCo often with a "
        "model that was trained before. `--local-steps 1,1000:16` does the former.",
        "**Outer momentum makes steps larger.** A rate R with a momentum M moves the weights by R / (1 - M) times the mean "
        "change in the long run: 7 times with the paper's numbers. The inner rate was chosen without it.",
        "**The data is shuffled over all replicas.** They drift apart less than replicas with data of different kinds."]


def write(runs: Runs, plan: Plan) -> None:
    commands = [Job(plan.base(name, best_rate(runs, plan, name), "SEED")) for name in plan.rates]
    page = f"# {TITLE}\n\n" + pages.prose(
        "Written by `make study PART=local`. The same cnn trains for the same number of steps on Fashion-MNIST, with 4 shards. "
        "With local steps each shard is a replica that takes H steps by itself; then the replicas exchange weights. "
        f"Each row has {pages.counted(len(plan.seeds), 'seed')}: {pages.listed([str(seed) for seed in plan.seeds])}. The table "
        "has the mean and the range from the lowest to the highest.")
    page += results(runs, plan) + pages.prose(
        "*local SGD* and *AdamW, mean* take the mean of the weights (`--outer mean`). *DiLoCo* is AdamW inside and Nesterov "
        f"momentum outside (`--outer {best_outer(runs, plan)}`: rate and momentum). AdamW's state stays with its replica.")
    page += "The synchronous jobs:\n\n" + "".join(pages.command("lockstep train " + job.words) for job in commands)
    page += "With local steps, one of these is added:\n\n" + "".join(
        pages.command(f"--local-steps H --outer {outer}") for outer in ("mean", best_outer(runs, plan)))
    page += "## What others have reported, and what is here\n\n" + effects(runs, plan) + pages.prose(
        f"*Free* means: the mean is at most {NEAR} points below that of the synchronous job, or not below its lowest seed.")
    page += "Where an effect differs from the reports, these may be reasons:\n\n" + "".join(map(item, reasons(plan)))
    page += "\n" + chosen_rates(runs, plan)
    jobs = [*plan.search(), *plan.search_outer(runs), *plan.jobs(runs)]
    (runs.settings.folder / "local.md").write_text(page + "## Where\n\n" + pages.measured_on(runs, jobs).rstrip() + "\n")

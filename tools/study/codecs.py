"""Accuracy of every codec at equal steps, and the bytes that it saves."""
from study import pages, plots
from study.runs import FASHION, TEXT, Job, Runs

CODECS = ["none", "bf16", "fp16", "int8", "int8:plain", "one-bit", "top-k:0.1", "top-k:0.01", "power-sgd:1:30",
          "power-sgd:4:30"]
SEEDS = [1, 2, 3]
TITLE = "Codecs: what fewer bytes cost in accuracy"


class Task:
    """One model on one set of data."""

    def __init__(self, name: str, words: str, batch: int, steps: int):
        self.name, self.words, self.batch, self.steps = name, words, batch, steps

    def job(self, codec: str, seed: int | str) -> Job:
        return Job(f"{self.words} --global-batch {self.batch} --shards 4 --workers 2 --steps {self.steps} --decay cosine "
                   f"--seed {seed} --codec {codec}")

    def wire(self, codec: str) -> Job:
        return Job(f"{self.words} --global-batch {self.batch} --engine tcp --shards 2 --workers 2 --steps 3 --codec {codec}")


class Plan:
    def __init__(self, quick: bool):
        self.codecs = ["none", "int8"] if quick else CODECS
        self.seeds = SEEDS[:2] if quick else SEEDS
        sgd, adamw = "--optimizer sgd --lr 0.05", f"--optimizer adamw --lr 0.005 --warmup {1 if quick else 20}"
        size, steps = (16, [3, 3]) if quick else (64, [300, 400])
        self.pictures = Task("cnn on Fashion-MNIST", f"--model cnn --data {FASHION} {sgd}", size, steps[0])
        self.text = Task("gpt on a text", f"--model gpt --gpt-size tiny --context {size} --data {TEXT} {adamw}", 16, steps[1])
        self.tasks = [self.pictures, self.text]

    def jobs(self) -> list[Job]:
        trained = [task.job(codec, seed) for task in self.tasks for codec in self.codecs for seed in self.seeds]
        return trained + [task.wire(codec) for task in self.tasks for codec in self.codecs]


def factor(runs: Runs, task: Task, codec: str) -> float:
    most, bytes_sent = (runs.of(task.wire(name))["bytes_moved_per_step"] for name in ("none", codec))
    return most / bytes_sent


def percent(runs: Runs, plan: Plan, task: Task, codec: str) -> plots.Row | None:
    return pages.row_of(runs, codec, [task.job(codec, seed) for seed in plan.seeds], "test_accuracy", 100)


def verdict(runs: Runs, plan: Plan, task: Task) -> str:
    """Which codecs have lost more than seeds differ."""
    base = percent(runs, plan, task, "none")
    within, below, diverged = [], [], []
    for codec in plan.codecs[1:]:
        row = percent(runs, plan, task, codec)
        kind = diverged if row is None else below if row.value < base.low else within
        kind.append(f"`{codec}`" + (f" ({row.value - base.value:+.2f} points)" if row else ""))
    text = []
    if within:
        text.append(f"With {pages.listed(within)} the mean is not below the lowest seed of `none`: no loss can be seen.")
    if below:
        text.append(f"With {pages.listed(below)} it is below it.")
    if diverged:
        text.append(f"With {pages.listed(diverged)} training has diverged.")
    return pages.prose(*text)


def section(runs: Runs, plan: Plan, task: Task, picture: str) -> str:
    rows, drawn = [], []
    for codec in plan.codecs:
        jobs = [task.job(codec, seed) for seed in plan.seeds]
        row = percent(runs, plan, task, codec)
        loss = pages.row_of(runs, codec, jobs, "test_loss")
        bytes_sent = runs.of(task.wire(codec))["bytes_moved_per_step"]
        rows.append([f"`{codec}`", *pages.spoken(row), *pages.spoken(loss, 3), f"{bytes_sent:,}",
                     f"{factor(runs, task, codec):.1f}"])
        drawn += [row] if row else []
    (runs.settings.folder / picture).write_text(
        plots.ranges(f"{task.name}, {task.steps} steps", "test accuracy, %: mean and range", drawn))
    head = ["codec", "test accuracy, %", "range", "test loss", "range", "bytes of a step", "times fewer"]
    return (f"## {task.name}\n\n" + pages.table(head, rows) + verdict(runs, plan, task) + f"![{task.name}]({picture})\n\n" +
            "A row is, with `CODEC` and each `SEED`:\n\n" +
            pages.command("lockstep train " + task.job("CODEC", "SEED").words) + "Bytes are from the report of:\n\n" +
            pages.command("lockstep train " + task.wire("CODEC").words))


def write(runs: Runs, plan: Plan) -> None:
    parameters = [runs.of(task.wire("none"))["parameters"] for task in plan.tasks]
    page = f"# {TITLE}\n\n" + pages.prose(
        "Written by `make study PART=codecs`. Each codec trains the same job for the same number of steps, with "
        f"{pages.counted(len(plan.seeds), 'seed')}: {pages.listed([str(seed) for seed in plan.seeds])}. A seed decides the "
        "first weights and the order of the data. Tables have the mean over the seeds, and the range from the lowest to the "
        "highest.")
    page += pages.prose(
        "All jobs have 4 shards, and each shard is encoded by itself. So the accuracy is that of 4 workers, whatever the "
        "number of workers and the network were ([decision 28](../decisions/0028-codecs-belong-to-shards.md)). Learning rates "
        "were not tuned for a codec.")
    page += section(runs, plan, plan.pictures, "codecs-pictures.svg") + section(runs, plan, plan.text, "codecs-text.svg")
    page += "## How to read it\n\n" + pages.prose(
        "Bytes are what the busiest of 2 workers sends or receives for gradients in a step, with one shard each. They are "
        "counted from the plan that the engine follows, without the headers of packets.")
    page += pages.prose(
        f"The models have {parameters[0]:,} and {parameters[1]:,} parameters. A part of a parameter that is shorter than a "
        "block of 1,024 elements has a scale of its own, so small parameters shrink less.")
    text = runs.kept[plan.text.wire("none").key]["text"]
    page += pages.prose(
        f"The text is all Markdown of `docs/` but the studies, one after the other: {text['bytes']:,} bytes, sha256 "
        f"{text['sha256']}…. Accuracy is that of the next character.")
    page += pages.prose(
        "These are short jobs. A codec that learns more slowly, but reaches the same in the end, looks worse here than in a "
        "long job.")
    (runs.settings.folder / "codecs.md").write_text(page + "## Where\n\n" + pages.measured_on(runs, plan.jobs()).rstrip() + "\n")

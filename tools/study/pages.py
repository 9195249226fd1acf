"""Markdown as tools/check_docs.py wants it, and what a page says of its runs."""
import collections
import statistics
import textwrap

from study.plots import Row
from study.runs import Job, Runs

COLUMNS = 100


def prose(*sentences: str) -> str:
    """One paragraph."""
    return textwrap.fill(" ".join(sentences), COLUMNS, break_long_words=False, break_on_hyphens=False) + "\n\n"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head)] + rows
    return "".join("| " + " | ".join(line) + " |\n" for line in lines) + "\n"


def command(words: str) -> str:
    """A command as a block of code, in lines that fit."""
    lines = textwrap.wrap(words, COLUMNS - 6, break_long_words=False, break_on_hyphens=False)
    return "    " + " \\\n      ".join(lines) + "\n\n"


def listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1] if names else "none"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def row_of(runs: Runs, name: str, jobs: list[Job], field: str, factor: float = 1) -> Row | None:
    """The mean over jobs and its range; None if one of them has diverged."""
    reports = [runs.of(job) for job in jobs]
    if any(report.get("diverged") for report in reports):
        return None
    values = [factor * report[field] for report in reports]
    return Row(name, statistics.mean(values), min(values), max(values))


def spoken(row: Row | None, digits: int = 2) -> list[str]:
    """Two cells: the mean, and the range."""
    if row is None:
        return ["diverged", ""]
    return [f"{row.value:.{digits}f}", f"{row.low:.{digits}f} to {row.high:.{digits}f}"]


def measured_on(runs: Runs, jobs: list[Job]) -> str:
    """Where and when these jobs were run."""
    places: dict[tuple[str, str], list[dict]] = collections.defaultdict(list)
    for job in dict.fromkeys(jobs):
        facts = runs.kept[job.key]["machine"]
        places[facts["processor"], facts["cores"]].append(facts)
    rows = []
    for (processor, cores), facts in places.items():
        commits = listed(sorted({fact["commit"] for fact in facts}))
        days = sorted({fact["date"] for fact in facts})
        rows.append([processor, cores, " to ".join(sorted({days[0], days[-1]})), commits, str(len(facts))])
    return table(["processor", "cores", "date", "commit", "runs"], rows)

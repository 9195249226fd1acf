#!/usr/bin/env python3
"""Studies of what codecs, local steps and a slow network do to training: pages with tables and pictures.

  tools/study.py [PART…]

  codecs      accuracy of every codec at equal steps, and the bytes that it saves
  local       accuracy against H, the steps between two exchanges of local SGD and DiLoCo
  stragglers  speed and accuracy with a slow worker; it measures times, so it needs a quiet machine
  epochs      accuracy after each epoch, which the page of `network` needs; has no page
  network     steps a second over a line of 100 Mbit/s and 20 ms; runs `epochs` first, if that was not run. It needs root or
              user namespaces, and a quiet machine

Without a PART: all. Every job that has ended is kept in WORK/runs.jsonl and not run again; remove that file to begin again.
"""
import argparse
import pathlib
import sys

sys.dont_write_bytecode = True
from study import codecs, line, local, network, pages, stragglers  # noqa: E402
from study.runs import FASHION, ROOT, Runs, Settings  # noqa: E402

ASKED = {"codecs": "How much accuracy does a codec cost, and how many bytes does it save?",
         "local": "How does accuracy change with the number of steps between two exchanges?",
         "stragglers": "What does one slow worker of four cost, and what do those who do not wait for it pay?",
         "network": "How many steps a second are left over 100 Mbit/s, and how long does 90 % take?"}
TITLES = {"codecs": codecs.TITLE, "local": local.TITLE, "stragglers": stragglers.TITLE, "network": network.TITLE}


def study_codecs(runs: Runs) -> None:
    plan = codecs.Plan(runs.settings.quick)
    runs.run_all(plan.jobs())
    codecs.write(runs, plan)


def study_local(runs: Runs) -> None:
    plan = local.Plan(runs.settings.quick)
    runs.run_all(plan.search())
    runs.run_all(plan.search_outer(runs))
    runs.run_all(plan.jobs(runs))
    local.write(runs, plan)


def study_stragglers(runs: Runs) -> None:
    plan = stragglers.Plan(runs.settings.quick)
    for job in plan.jobs():  # one after the other: their times count
        runs.run_all([job])
    stragglers.write(runs, plan)


def study_epochs(runs: Runs) -> None:
    runs.run_all(network.Plan(runs.settings.quick).all_epochs())


def study_network(runs: Runs) -> None:
    plan = network.Plan(runs.settings.quick)
    study_epochs(runs)
    network.measure(runs, plan)
    network.write(runs, plan)


PARTS = {"codecs": study_codecs, "local": study_local, "stragglers": study_stragglers, "epochs": study_epochs, "network": study_network}


def write_list(folder: pathlib.Path) -> None:
    """The page that leads to the others; a study that was not run has no link."""
    rows = []
    for part, title in TITLES.items():
        name = f"[{title}]({part}.md)" if (folder / f"{part}.md").exists() else title
        rows.append([name, ASKED[part], f"`make study PART={part}`"])
    page = "# Studies\n\n" + pages.prose(
        "What codecs, local steps, a slow worker and a slow network do to training, measured with `lockstep train`. `make study` runs all of "
        "them, in some hour on 2 cores (an estimate), and writes these pages and their pictures (`tools/study.py`). Tables say the "
        "command of a row, and each page says where and when it was measured.")
    page += pages.table(["study", "question", "command"], rows) + pages.prose(
        "Jobs that have ended are kept in `build/study/runs.jsonl` and are not run again: a study that was interrupted goes on, "
        "and a changed page can be written without training. Remove that file to begin again. `JOBS_AT_ONCE=4` runs as many "
        "jobs at a time, of 2 workers each. Accuracy does not depend on that. `stragglers` and `network` measure times, one job after "
        "the other, and need a quiet machine; `network` also root or user namespaces.")
    page += pages.prose(
        "These are small models and short jobs: what costs nothing here may cost something elsewhere. How to use what is "
        "studied: [codecs](../guide/codecs.md), [training without C++](../guide/training.md), [several "
        "hosts](../guide/several-hosts.md).")
    (folder / "README.md").write_text(page.rstrip() + "\n")


def settings_of(options: argparse.Namespace) -> Settings:
    work = pathlib.Path(options.work or ROOT / ("build/study-quick" if options.quick else "build/study"))
    folder = pathlib.Path(options.folder or (work if options.quick else ROOT / "docs/studies"))
    folder.mkdir(parents=True, exist_ok=True)
    data = options.data or ("synthetic:400" if options.quick else FASHION)
    return Settings(options.lockstep, data, folder, work, options.at_once, options.quick)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--lockstep", default=str(ROOT / "build/lockstep"), help="the command (default: build/lockstep)")
    parser.add_argument("--data", default="", help="Fashion-MNIST: a directory of its IDX files (default: that of the package)")
    parser.add_argument("--folder", default="", help="where pages go (default: docs/studies)")
    parser.add_argument("--work", default="", help="where runs.jsonl is (default: build/study)")
    parser.add_argument("--at-once", type=int, default=1, help="jobs at a time, where no time is measured (default: 1)")
    parser.add_argument("--quick", action="store_true", help="a few steps on synthetic data, to try it out; writes to build/")
    options = parser.parse_args()
    parts = options.parts or list(PARTS)
    for part in parts:
        if part not in PARTS:
            parser.error(f"there is no part {part}; parts are {', '.join(PARTS)}")
    if "network" in parts:
        line.own_namespaces()
    settings = settings_of(options)
    runs = Runs(settings)
    for part in parts:
        print(f"== {part}", flush=True)
        PARTS[part](runs)
    write_list(settings.folder)


if __name__ == "__main__":
    main()

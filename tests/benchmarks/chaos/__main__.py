"""`make chaos`: runs that are disturbed on this machine and on the emulated cloud, and its part of docs/proofs.md.

    python -m tests.benchmarks.chaos [--kills N] [--seed S] [--place local|cloud] [--only I] [--actors 1|4]

With four actors, refreshes, readers and a person work next to the run; their campaign is kept apart,
and has a part of its own in the page.

Runs that are done are in workspace/chaos and are not done again; after a change of code, delete them. The page is
written once both places have all runs, and the exit code is 1 if anything does not hold.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from flows.cli.terminal import console
from flows.cli.terminal.console import note, say
from flows.presentation.model import table
from infra.store.directory import DirectoryStore
from tasks.foundation.nouns import plural
from tests.benchmarks.chaos import page
from tests.benchmarks.chaos.campaign import Report, campaign, counts
from tests.benchmarks.chaos.draws import crowds, draws
from tests.benchmarks.disturbed.cloud import CloudWorld, CrowdedCloudWorld
from tests.benchmarks.disturbed.local import LocalWorld
from tests.benchmarks.disturbed.page import put
from tests.benchmarks.disturbed.world import opened

ALONE = {"local": LocalWorld, "cloud": CloudWorld}
CROWDED = {"local": LocalWorld, "cloud": CrowdedCloudWorld}
MARK = "-four-actors"
RESULTS = DirectoryStore(Path("workspace/chaos"))


def main() -> int:
    """Run the campaigns; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="disturbed runs at each place")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--place", choices=ALONE, help="only there")
    parser.add_argument("--only", type=int, help="only the run of this number, done before or not")
    parser.add_argument("--actors", type=int, choices=(1, 4), default=1)
    options = parser.parse_args()
    crowded = options.actors > 1
    for name in ALONE:
        if options.place in (None, name):
            disturb(name, options.kills, options.seed, options.only, crowded)
    reports = [report for name in ALONE if (report := known(name, options.seed, crowded)) is not None]
    for report in reports:
        show(report, crowded)
    if crowded:
        keys = [key for key in sorted(RESULTS.list("")) if MARK in key]
        every = [Report.model_validate_json(RESULTS.read(key)) for key in keys]
        put("make chaos ACTORS=4", page.tables(every))
    elif len(reports) == len(ALONE) and all(len(report.runs) >= options.kills for report in reports):
        put("make chaos", page.tables(reports))
    return 1 if any(report.wrong for report in reports) else 0


def disturb(name: str, kills: int, seed: int, only: int | None, crowded: bool) -> None:
    """Do the runs of a place that are not done, or the one of the number `only`, and keep each in its file."""
    world, before = (CROWDED if crowded else ALONE)[name], known(name, seed, crowded)
    done = [run for run in before.runs if run.number != only] if before is not None else []
    share = world.whole_share
    every = crowds(seed, kills, share, name == "cloud") if crowded else draws(seed, kills, share)
    some = [draw for draw in every if draw.number not in {run.number for run in done} and only in (None, draw.number)]
    if some:
        with opened(world, note) as place:
            campaign(
                place, seed, some, note, done, lambda report: RESULTS.write(_key(name, seed, crowded), report.to_json())
            )


def known(name: str, seed: int, crowded: bool) -> Report | None:
    """Return the runs of a place that are done."""
    key = _key(name, seed, crowded)
    return Report.model_validate_json(RESULTS.read(key)) if RESULTS.exists(key) else None


def _key(name: str, seed: int, crowded: bool) -> str:
    return f"{name}{MARK if crowded else ''}-seed-{seed}.json"


def show(report: Report, crowded: bool) -> None:
    """Print the ends of the runs by act and stage, and how to repeat those with violations."""
    columns = ("act", "stage", ">runs", ">by itself", ">one rerun", ">not", ">violations", ">seconds lost")
    console.show([table("", columns, [tuple(map(str, row)) for row in counts(report.runs, "act", "stage")])])
    whole, ended = len(report.runs) - report.wrong, "as required" if crowded else "as if undisturbed, bit for bit"
    say(
        f"{report.place}, seed {report.seed}: {whole} of {plural(len(report.runs), 'run')} ended {ended}; "
        f"an undisturbed one takes {report.undisturbed_seconds:.0f} s"
    )
    for run in report.runs:
        if run.violations:
            say(f"! {run.number}: {'; '.join(run.violations)}")
            actors = " --actors 4" if crowded else ""
            again = f"--kills {run.number} --seed {report.seed} --only {run.number}{actors}"
            say(f"  repeat it: python -m tests.benchmarks.chaos {again}")
    for folder in report.kept:
        say(f"  {folder}")


if __name__ == "__main__":
    sys.exit(main())

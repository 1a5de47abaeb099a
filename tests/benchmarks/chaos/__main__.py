"""`make chaos`: runs that are disturbed on this machine and on the emulated cloud, and docs/chaos.md.

    python -m tests.benchmarks.chaos [--kills N] [--seed S] [--place local|cloud] [--only I] [--actors 1|4]

With four actors, refreshes, readers and a person work next to the run; their campaign is kept apart,
and has a part of its own in the page.

Runs that are done are in workspace/chaos and are not done again; after a change of code, delete them. The page is
written once both places have all runs, and the exit code is 1 if anything does not hold.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from flows.cli.terminal.console import note
from infra.store.directory import DirectoryStore
from tests.benchmarks.chaos import crowded_main, page
from tests.benchmarks.chaos.campaign import ChaosReport, hold
from tests.benchmarks.chaos.cloud import CloudPlace
from tests.benchmarks.chaos.draws import draws
from tests.benchmarks.chaos.local import LocalPlace
from tests.benchmarks.chaos.show import show

PLACES = {"local": LocalPlace, "cloud": CloudPlace}
PAGE = Path(__file__).resolve().parents[3] / "docs" / "chaos.md"
RESULTS = DirectoryStore(Path("workspace/chaos"))


def main() -> int:
    """Run the campaigns; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="disturbed runs at each place")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--place", choices=PLACES, help="only there")
    parser.add_argument("--only", type=int, help="only the run of this number, done before or not")
    parser.add_argument("--actors", type=int, choices=(1, 4), default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what was started must end too
    if options.actors > 1:
        places = [name for name in PLACES if options.place in (None, name)]
        return max(crowded_main.disturb(name, options.kills, options.seed, options.only) for name in places)
    for name in PLACES:
        if options.place in (None, name):
            disturb(name, options.kills, options.seed, options.only)
    reports = [report for name in PLACES if (report := known(name, options.seed)) is not None]
    for report in reports:
        show(report)
    if len(reports) == len(PLACES) and all(len(report.runs) >= options.kills for report in reports):
        PAGE.write_text(page.whole(reports) + page.crowds_of(PAGE.read_text()))
    return 1 if any(report.violations for report in reports) else 0


def disturb(name: str, kills: int, seed: int, only: int | None) -> None:
    """Do the runs of a place that are not done, or the one of the number `only`, and keep each in its file."""
    place, before = PLACES[name], known(name, seed)
    done = {run.number: run for run in before.runs if run.number != only} if before is not None else {}
    some = [draw for draw in draws(seed, kills, place.whole_share) if draw.number not in done]
    some = [draw for draw in some if only in (None, draw.number)]
    if some:
        hold(place, None, seed, some, note, tuple(done.values()), lambda report: save(name, report))


def save(name: str, report: ChaosReport) -> None:
    RESULTS.write(f"{name}-seed-{report.seed}.json", report.to_json())


def known(name: str, seed: int) -> ChaosReport | None:
    """Return the runs of a place that are done."""
    key = f"{name}-seed-{seed}.json"
    return ChaosReport.model_validate_json(RESULTS.read(key)) if RESULTS.exists(key) else None


if __name__ == "__main__":
    sys.exit(main())
